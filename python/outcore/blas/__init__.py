"""SciPy's BLAS and LAPACK: their choice, and calls that copy nothing."""
