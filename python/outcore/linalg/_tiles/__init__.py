"""Matrices in memory: tiles, types, threads that share work on them, operands on disk."""
