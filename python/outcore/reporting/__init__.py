"""Reports as HTML pages, as drawn by `outcore report`."""
