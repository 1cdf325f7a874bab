"""The experiments of Sterling et al. 1996 on a testbed: tokens, and local and remote copies."""
