"""Products of matrices, and triangular systems."""
