"""The files of FLASH's I/O benchmark: their arrays, sizes and values.

Facts: the benchmark's README of 2001 (M. Zingale), and Ross et al. 2001.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CELLS, GUARDS, VARIABLES, PLOTTED, BLOCKS = 8, 4, 24, 4, 80
SIDE = CELLS + 2 * GUARDS
CONTENTS = ("checkpoint", "centred", "corners")

TREE: dict[str, tuple[bool, tuple[int, ...]]] = {
    "refinement": (True, ()), "kind": (True, ()), "relatives": (True, (15,)),
    "coordinates": (False, (3,)), "sizes": (False, (3,)), "boxes": (False, (3, 2)),
}  # fmt: skip
"""Arrays of the tree of blocks: whether their numbers are integers, and their extents."""


def blocks_of(processes: int, factor: int) -> list[range]:
    """Return the blocks of each process."""
    counts = [factor * (BLOCKS + rank % 3) for rank in range(processes)]
    ends = np.cumsum(counts)
    return [range(int(end) - count, int(end)) for count, end in zip(counts, ends, strict=True)]


@dataclass(frozen=True)
class Layout:
    """The array of a file: type and extents beyond those of the blocks."""

    dtype: np.dtype[np.generic]
    extents: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return math.prod(self.extents) * self.dtype.itemsize


def layouts(content: str) -> dict[str, Layout]:
    """Return the arrays of a file of this content."""
    real = np.dtype("f8" if content == "checkpoint" else "f4")
    side = CELLS + (content == "corners")
    count = VARIABLES if content == "checkpoint" else PLOTTED
    tree = {
        name: Layout(np.dtype("i4") if is_integer else real, extents)
        for name, (is_integer, extents) in TREE.items()
    }
    return tree | {f"variable{i:02}": Layout(real, (side,) * 3) for i in range(count)}


def file_bytes(content: str, blocks: int) -> int:
    """Return the bytes of the arrays of a file."""
    return blocks * sum(each.block_bytes for each in layouts(content).values())


def cells(blocks: range) -> npt.NDArray[np.float64]:
    """Return the memory of a process: blocks x 16 x 16 x 16 x variables, guard cells included.

    The outer guard cells are 0: nothing reads them.
    """
    within = np.arange(SIDE**3).reshape(SIDE, SIDE, SIDE, 1) + SIDE**3 * np.arange(VARIABLES)
    first = np.arange(blocks.start, blocks.stop, dtype=np.float64)
    found = np.zeros((len(blocks), SIDE, SIDE, SIDE, VARIABLES))
    used = slice(GUARDS - 1, GUARDS + CELLS + 1)
    found[:, used, used, used] = first.reshape(-1, 1, 1, 1, 1) + within[used, used, used] / 2**17
    return found


def interiors(memory: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a view without guard cells: variables x blocks x 8 x 8 x 8."""
    inner = slice(GUARDS, GUARDS + CELLS)
    found: npt.NDArray[np.float64] = np.moveaxis(memory[:, inner, inner, inner], -1, 0)
    return found


def tree(name: str, blocks: range) -> npt.NDArray[np.float64]:
    """Return the numbers of an array of the tree."""
    block = np.arange(blocks.start, blocks.stop)
    size = 0.5 ** (1 + block % 5)
    coordinates = block[:, None] + np.arange(3) / 4
    found: dict[str, npt.NDArray[np.generic]] = {
        "refinement": 1 + block % 5,
        "kind": 1 + block % 3,
        "relatives": 15 * block[:, None] + np.arange(15),
        "coordinates": coordinates,
        "sizes": np.repeat(size[:, None], 3, axis=1),
        "boxes": coordinates[:, :, None] + size[:, None, None] * np.array([-0.5, 0.5]),
    }
    return found[name].astype(np.float64)


def corners(memory: npt.NDArray[np.float64], variable: int) -> npt.NDArray[np.float64]:
    """Return the means of the 8 cells around each corner of the cells of a variable."""
    sides = [slice(GUARDS - less, GUARDS - less + CELLS + 1) for less in (0, 1)]
    around = [memory[:, z, y, x, variable] for z in sides for y in sides for x in sides]
    found: npt.NDArray[np.float64] = np.mean(around, axis=0)
    return found


def arrays(
    content: str, memory: npt.NDArray[np.float64], blocks: range
) -> Iterator[tuple[str, npt.NDArray[np.float64], Layout]]:
    """Yield name, numbers and layout of each array of a file; a checkpoint's are views."""
    for name, layout in layouts(content).items():
        if name in TREE:
            yield name, tree(name, blocks), layout
        else:
            variable = int(name[-2:])
            is_at_corners = content == "corners"
            numbers = corners(memory, variable) if is_at_corners else interiors(memory)[variable]
            yield name, numbers, layout
