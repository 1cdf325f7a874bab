"""Arrays that all processes of a parallel program write or read in one call."""
