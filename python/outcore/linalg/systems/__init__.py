"""Systems of equations in one call: directly, or by factors in lower precision and refinement."""
