"""Condition and determinant from factors."""
