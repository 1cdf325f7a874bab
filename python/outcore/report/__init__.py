"""Reports on long calls: figures, files, pages and plots."""
