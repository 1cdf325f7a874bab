"""The files of a two-level LU: beside its factors, the trailing matrices."""

from outcore._core import ArrayFile, Grid
from outcore.linalg.lu.phases import PhasedFiles
from outcore.linalg.lu.two_level_geometry import TwoLevelGeometry

SWAPPED = "swapped"
"""L of a super-slab with all its row swaps."""


class TwoLevelStorage(PhasedFiles[TwoLevelGeometry]):
    """The files of one LU in two levels."""

    method = "two-level"
    arrays = ("matrix", "factors", "next", "rest", SWAPPED)

    def open_workspace(
        self, what: str, k: int, grid: Grid, *, bounce_bytes: int, anew: bool = False
    ) -> ArrayFile:
        """Open a part of trailing matrix `k`, or L with all its swaps; `anew`: make it first."""
        return self.open_beside(_name(what, k), what, grid, bounce_bytes=bounce_bytes, anew=anew)

    def keep_only(self, k: int | None) -> None:
        """Remove all workspaces but trailing matrix `k`."""
        kept = () if k is None else (_name("next", k), _name("rest", k))
        for name in self.kind.workspaces:
            if name not in kept:
                self._remove(name)


def _name(what: str, k: int) -> str:
    return what if what == SWAPPED else f"{what}-{k % 2}"
