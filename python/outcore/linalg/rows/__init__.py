"""Methods that take the rows of a matrix as they go by: least squares, QR, SVD, Gram matrices."""
