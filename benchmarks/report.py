"""The results of all benchmarks as a fragment of Markdown for ``docs/performance.md``."""

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, table

ORDER = (
    "lu", "matmul", "scipy_lu", "cholesky", "cliff", "streaming", "blocks", "boxes", "lstsq",
    "gauss_seidel", "svd", "mixed", "dask_linalg", "rivals", "rechunk", "permute",
    "pool_embedded", "pool_served", "pool_disks", "pool_network", "pool_requests", "pool_watched",
    "pool_hdf5", "mount", "collective", "collective_disks", "distributions",
    "checkpoint",
)  # fmt: skip


def render(directory: Path) -> str:
    """Render the results in a directory."""
    documents = {
        found["benchmark"]: found
        for found in (json.loads(path.read_text()) for path in sorted(directory.glob("*.json")))
        if found.get("benchmark") in ORDER
    }
    if not documents:
        return f"There are no results in {directory}; make some with `python -m benchmarks`."
    ordered = [documents[name] for name in sorted(documents, key=ORDER.index)]
    parts = [_section(found) for found in ordered]
    return "\n".join([_machine(ordered[0]["machine"]), *parts])


def _section(found: dict[str, Any]) -> str:
    figures = [Figure.from_dict(dict(row)) for row in found["figures"]]
    is_quick = found["size"] != "full"
    notes = [
        f"`{found['command']}`, {found['machine']['date'][:10]}, {found['machine']['blas']}"
        f" ({found['environment'].replace('OPENBLAS_*', '`OPENBLAS_*`')}).",
        *(["Small sizes, which do not count."] if is_quick else []),
    ]
    return "\n".join(
        [f"\n### {found['benchmark']}\n", table(figures, is_quick=is_quick), "", *notes]
    )


def _machine(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"Machine: {found['cpu']}, {found['cores']} cores, "
        f"{found['memory_bytes'] / 2**30:.0f} GiB, Linux {found['kernel']}, "
        f"{found['file_system']}; Python {found['python']}, {versions}."
    )
