"""An old version of zarr, with the attributes that outcore checks."""

__version__ = "2.18.3"
