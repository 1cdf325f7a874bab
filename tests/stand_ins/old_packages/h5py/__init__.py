"""An old version of h5py, as far as outcore looks at it."""

__version__ = "3.10.0"
