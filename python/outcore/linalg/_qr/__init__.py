"""QR of tall matrices, in one reading."""
