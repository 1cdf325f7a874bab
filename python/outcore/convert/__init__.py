"""Copies of arrays from and to other formats."""
