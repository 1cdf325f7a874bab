"""Parts that all factorizations share: the begin, the storage, checks, triangular sweeps."""
