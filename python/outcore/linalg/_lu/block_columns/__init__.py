"""LU by block columns, for budgets below a slab: tournament or partial pivoting."""
