"""The check that all processes of a solve have the same arguments."""

from collections.abc import Mapping

from outcore.array.array import Array
from outcore.array_files.metadata import version_of
from outcore.linalg._output.factor import Factor
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.processes.sharing import Sharing, digest_of
from outcore.storage.volumes import Place


def agree_on_solving(
    title: str,
    matrix: Mapping[str, Factor | Place],
    rhs: RightHandSide,
    sharing: Sharing,
    *,
    resume: bool,
) -> None:
    """Check that all processes solve the same system, with a named matrix or factors of it.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or system, or no MPI for
        several threads.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi(f"{title} by several processes")
    sharing.agree(
        {
            "trans=": rhs.trans, "type": rhs.dtype.str, "shape of b": rhs.b.shape,
            "out=": None if rhs.out is None else str(rhs.out.path), "if_exists=": rhs.if_exists,
            "resume=": resume,
        }
    )  # fmt: skip
    for name, each in matrix.items():
        now = list(version_of(each)) if isinstance(each, Place) else version_of_operand(each)
        sharing.agree({name: now})
    b = rhs.b
    sharing.agree({"b": version_of_operand(b) if isinstance(b, Array) else digest_of(b)})
