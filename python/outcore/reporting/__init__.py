"""Reports as pages: what `outcore report` draws."""
