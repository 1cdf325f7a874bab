"""An old version of mpi4py, with the attributes that outcore checks."""

__version__ = "4.0.3"
