"""QR of matrices on disk by slabs of columns, and least squares with its factors."""
