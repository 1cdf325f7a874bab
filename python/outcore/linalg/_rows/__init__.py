"""Matrices read by rows once: streams of rows, tall QR, its Q."""
