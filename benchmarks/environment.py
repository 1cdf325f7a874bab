"""The environment of measured processes, without variables that choose OpenBLAS's kernels."""

import os

PREFIX = "OPENBLAS_"


def removed() -> list[str]:
    """Return the names of the variables that `for_child` removes."""
    return sorted(name for name in os.environ if name.startswith(PREFIX))


def for_child(*, keep: bool = False) -> dict[str, str]:
    """Return the environment of a child.

    Unless `keep` is true, it has no ``OPENBLAS_*``. Then outcore and SciPy choose kernels as for a
    user who has set none. Importing outcore sets one for its own process, so children of such a
    process need this too.
    """
    if keep:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
