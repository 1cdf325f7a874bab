"""LU by slabs of columns: left-looking, with partial pivoting."""
