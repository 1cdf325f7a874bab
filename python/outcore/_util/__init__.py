"""Helpers that know nothing of arrays: sizes, budgets, progress, signals, communicators."""
