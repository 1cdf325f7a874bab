"""Cholesky, and solving with its factor."""
