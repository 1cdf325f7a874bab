"""Matrices read by strips in each step of an iterative method, pinned in memory where they fit."""
