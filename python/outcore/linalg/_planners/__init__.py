"""Planners of all methods, behind one interface for `outcore.plan`."""
