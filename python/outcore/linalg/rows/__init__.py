"""Methods that stream the rows of a matrix: least squares, QR, SVD, Gram matrices."""
