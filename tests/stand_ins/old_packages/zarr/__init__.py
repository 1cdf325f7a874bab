"""An old version of zarr, as far as outcore looks at it."""

__version__ = "2.18.3"
