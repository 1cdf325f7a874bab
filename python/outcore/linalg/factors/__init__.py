"""Factors on disk, of any kind: how calls create, keep, resume and use them."""
