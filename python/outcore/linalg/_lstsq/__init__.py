"""Least squares: tall, wide and square matrices, weights, damping, statistics."""
