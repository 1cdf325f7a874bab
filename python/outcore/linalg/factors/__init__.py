"""Factors on disk, of any kind: made, kept, gone on with, and what is known from them."""
