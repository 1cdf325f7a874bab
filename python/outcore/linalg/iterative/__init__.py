"""Iterative methods: sweeps and Krylov spaces."""
