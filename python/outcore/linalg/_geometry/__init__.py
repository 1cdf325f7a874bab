"""Tiles and slabs of a matrix on disk, and the order in which their bytes are read."""
