"""The files of an array: metadata, versions, growth, replacement, servers."""
