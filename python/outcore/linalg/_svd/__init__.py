"""Truncated singular value decomposition."""
