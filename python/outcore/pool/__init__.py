"""Pools: connections, daemons, checks, and their interfaces to fsspec and zarr-python."""
