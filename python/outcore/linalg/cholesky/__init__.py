"""Cholesky factorization, and solves with its factor."""
