"""Permutations of arrays on disk, in few passes."""
