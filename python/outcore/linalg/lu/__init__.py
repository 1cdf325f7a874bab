"""LU with partial pivoting, and solves with its factors."""
