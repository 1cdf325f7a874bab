"""The I/O of FLASH, an adaptive-mesh code of astrophysics, in three ways (Ross et al. 2001).

``python -m benchmarks.flash`` measures. `model.py` and `model.c` describe the same files, in which
`arrays.py`, `hdf5.c` and `pnetcdf.c` write them.
"""
