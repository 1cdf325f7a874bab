"""QR factorization by slabs of columns: Householder reflections, Q, solves."""
