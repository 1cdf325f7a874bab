"""Elements, names and attributes in files of other formats, for sources and targets."""
