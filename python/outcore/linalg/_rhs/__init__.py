"""Right-hand sides and solutions: columns, groups, residuals, condition."""
