"""An old version of mpi4py, as far as outcore looks at it."""

__version__ = "4.0.3"
