"""The processes of one call: their agreements, errors, blocks and reports."""
