"""Benchmarks of outcore against its rivals: ``python -m benchmarks --help``.

outcore and the rival alternate in one run, so that both see the same disk and the same clock; a
figure is the median of the pairwise ratios. This package has no imports here, because some of its
child processes must not have outcore in them.
"""
