"""LU with partial pivoting, and what is done with its factors."""
