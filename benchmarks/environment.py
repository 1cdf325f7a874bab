"""The environment of measured processes: without what would choose OpenBLAS's kernels for them."""

import os

PREFIX = "OPENBLAS_"


def removed() -> list[str]:
    """Names of the variables that `for_child` takes out."""
    return sorted(name for name in os.environ if name.startswith(PREFIX))


def for_child(*, keep: bool = False) -> dict[str, str]:
    """Environment for a child.

    Unless it is to be kept, it has no ``OPENBLAS_*``: outcore and SciPy then choose kernels as they
    do for a user who has set nothing. outcore sets one for its own process, so children of a
    process that imported it need this too.
    """
    if keep:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
