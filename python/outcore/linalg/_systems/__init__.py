"""`solve`: the choice of a method, refinement, mixed precision."""
