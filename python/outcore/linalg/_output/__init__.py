"""Results and factors on disk: places, steps done, owners of temporary ones."""
