"""Where elements lie: shapes, chunks, schemas, selections and types. Nothing here does I/O."""
