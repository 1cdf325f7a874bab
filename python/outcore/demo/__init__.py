"""Demonstration: sound scattered by a soft sphere, checked against the exact series.

The boundary element matrix of :mod:`outcore.demo.sphere` is dense, complex and produced block by
block, which makes it a realistic load for an out-of-core factorization. The partial-wave series of
:mod:`outcore.demo.series` measures the error of the solution.
"""
