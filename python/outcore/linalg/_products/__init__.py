"""Products and triangular solves of matrices on disk."""
