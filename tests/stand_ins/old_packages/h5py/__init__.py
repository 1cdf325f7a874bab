"""An old version of h5py, with the attributes that outcore checks."""

__version__ = "3.10.0"
