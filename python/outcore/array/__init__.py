"""Arrays on disk: the class, indexing, creation, assembly, verification."""
