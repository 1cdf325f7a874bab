"""Cholesky factorization by slabs of the lower triangle, and solves."""
