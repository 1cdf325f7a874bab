"""The check that all processes of a factorization have the same arguments."""

from outcore.array_files.metadata import read_metadata
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._tiles.matrix import place_of
from outcore.processes.sharing import Sharing


def agree_on_factoring(title: str, job: Factoring, method: str, sharing: Sharing) -> None:
    """Check that all processes factor the same matrix in the same way.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or matrix, or no MPI for
        several threads.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi(f"{title} by several processes")
    source = place_of(job.A)
    sharing.agree(
        {
            "A": source.source, "out=": str(job.out), "dtype=": str(job.dtype),
            "overwrite_a=": job.overwrite_a, "if_exists=": job.if_exists, "resume=": job.resume,
            "method=": method,
        }
    )  # fmt: skip
    sharing.agree_on_matrix(source, read_metadata(source))
