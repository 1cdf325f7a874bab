"""LU factorization: the choice of a method, and solves."""
