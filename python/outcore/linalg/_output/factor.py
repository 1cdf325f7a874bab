"""Factors on disk.

Factors are a Zarr group with an array of tiles, ``lu``, ``l`` or ``qr``. LU also has its row swaps,
``piv``. QR of a matrix or of its transpose also has the factors of the reflections, ``tau``. LU is
in *LINPACK order*: the L part of a panel has the row swaps of its own and earlier panels, never of
later ones. QR is in the format of LAPACK's geqrf. ``docs/format.md`` describes the bytes.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Grid, Trace
from outcore.array.array import open_array
from outcore.array.operand import ArrayOperand
from outcore.errors import CorruptError, IncompleteError, InvalidError, NotFoundError
from outcore.layout.elements import in_memory
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata, group_json
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, Place, place

_INCOMPLETE = frozenset({"n", "dtype", "tile", "source"})
_COMPLETE = _INCOMPLETE | {"places", "norm1", "generation", "modified_ns"}


@dataclass(frozen=True)
class Kind:
    """A kind of factors, with its names in files and messages.

    Attributes
    ----------
    name
        Name in metadata.
    title
        Name for users.
    function
        Function that creates the factors.
    suffix
        Suffix of their directory, after the name of the matrix.
    array
        Name of the array of tiles.
    vectors
        Names of further arrays.
    is_lower
        Whether tiles above the diagonal are not stored.
    is_square
        Whether the matrix must be square.
    is_transposed
        Whether the factors are those of the transpose.
    keys
        Keys of complete factors in the group's metadata, beside those of all kinds.
    workspaces
        Temporary files of a run, beside its factors.
    """

    name: str
    title: str
    function: str
    suffix: str
    array: str
    vectors: tuple[str, ...] = ()
    is_lower: bool = False
    is_square: bool = True
    is_transposed: bool = False
    keys: frozenset[str] = frozenset()
    workspaces: tuple[str, ...] = ()

    def words(self, m: int, n: int) -> float:
        """Words that any solve with factors of an m x n matrix must read: each word once."""
        return m * n / (2 if self.is_lower else 1)

    def shape_of(self, matrix: Sequence[int]) -> tuple[int, int]:
        """Shape to factor for a matrix of shape `matrix`."""
        m, n = matrix
        return (n, m) if self.is_transposed else (m, n)


LU = Kind(
    "lu", "LU", "lu_factor", ".lu", "lu", ("piv",), keys=frozenset({"growth", "info"}),
    workspaces=("rest-0", "lower", "spill"),
)  # fmt: skip
CHOLESKY = Kind("cholesky", "Cholesky", "cho_factor", ".cho", "l", is_lower=True)
QR = Kind(
    "qr", "QR", "qr_factor", ".qr", "qr", ("tau",), is_square=False, keys=frozenset({"m", "info"})
)
QR_TRANSPOSED = dataclasses.replace(
    QR, name="qr_transposed", title="transposed QR", function="lstsq", is_transposed=True
)

KINDS = {kind.name: kind for kind in (LU, CHOLESKY, QR, QR_TRANSPOSED)}


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Factors on disk, of any kind.

    Attributes
    ----------
    path
        Directory of the factors.
    n, dtype
        Order, or number of columns, and element type.
    tile
        Rows and columns of a tile.
    norm1
        ‖A‖₁; for complex types a lower bound within √2, so that errors relative to it are not
        underestimated.
    source
        Path of the matrix.
    places
        Place of each panel on disk.
    slot_align_bytes
        Unit to which tiles on disk are padded.
    report
        Report of the factorization; `None` if the factor was opened from disk.
    """

    kind: ClassVar[Kind]

    path: Path
    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]
    norm1: float
    source: str
    places: tuple[int, ...]
    slot_align_bytes: int = SLOT_ALIGN_BYTES
    report: Report | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return (self.n, self.n)

    def open_tiles(self, arena: Arena, trace: Trace | None = None) -> ArrayFile:
        """Open the file of the factors, as whole tiles."""
        grid = tile_grid(self.shape[0], self.dtype, self.tile, self.places, self.slot_align_bytes)
        return open_tiles(place(self.path), self.kind, grid, arena, trace)

    @classmethod
    def open(cls, where: Place) -> Self:
        """Open factors of this kind; see `open_factor`."""
        own = _read_complete(where, cls.kind)
        common = {
            "path": where.path,
            "n": own["n"],
            "dtype": np.dtype(own["dtype"]),
            "tile": (int(own["tile"][0]), int(own["tile"][1])),
            "norm1": own["norm1"],
            "source": own["source"],
            "places": tuple(own["places"]),
            "slot_align_bytes": int(own.get("slot_align_bytes", SLOT_ALIGN_BYTES)),
        }
        factor = cls(**common, **cls._further(where, own))
        factor.open_tiles(Arena(1 << 20))
        return factor

    @classmethod
    def _further(cls, where: Place, own: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that other kinds do not have."""
        return {}


@dataclass(frozen=True, kw_only=True)
class LUFactor(Factor):
    """Factors P A = L U on disk, as `lu_factor` and `open_factor` return them.

    Attributes
    ----------
    piv
        (n,) int32: row i was swapped with row ``piv[i]``, as in `scipy.linalg.lu_factor`.
    growth
        Largest element of U over the largest of A; for complex types, bounds within √2 of these.
        Tournament pivoting multiplies it by the largest element of L.
    info
        LAPACK's: 0, or the first exactly zero pivot, counted from 1.
    path, n, dtype, tile, norm1, source, places, report
        As for every `Factor`.
    """

    kind: ClassVar[Kind] = LU

    piv: npt.NDArray[np.int32]
    growth: float
    info: int

    def panel_piv(self, panel: int) -> npt.NDArray[np.int32]:
        """Row swaps of one panel, counted from its first row."""
        first = panel * self.tile[1]
        return self.piv[first : first + self.tile[1]] - np.int32(first)

    @classmethod
    def _further(cls, where: Place, own: dict[str, Any]) -> dict[str, Any]:
        with open_array(where.path / "piv") as piv:
            swaps = piv[...]
        if swaps.shape != (own["n"],):
            raise CorruptError(f"{where.path}/piv is not of order {own['n']}; factor again")
        return {"piv": swaps, "growth": own["growth"], "info": own["info"]}


@dataclass(frozen=True, kw_only=True)
class CholeskyFactor(Factor):
    """The factor L of A = L Lᴴ on disk, as `cho_factor` and `open_factor` return it.

    Attributes
    ----------
    path, n, dtype, tile, norm1, source, places, report
        As for every `Factor`.
    """

    kind: ClassVar[Kind] = CHOLESKY


@dataclass(frozen=True, kw_only=True)
class QRFactor(Factor):
    """Factors A = Q R on disk, as `qr_factor` and `open_factor` return them.

    Attributes
    ----------
    m
        Number of rows.
    tau
        (min(m, n),): factors of the reflections I - tau_i v_i v_iᴴ, whose product is Q.
    info
        0, or the first exactly zero element of R's diagonal, counted from 1.
    path, n, dtype, tile, norm1, source, places, report
        As for every `Factor`.
    """

    kind: ClassVar[Kind] = QR

    m: int
    tau: npt.NDArray[Any]
    info: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return (self.m, self.n)

    @classmethod
    def _further(cls, where: Place, own: dict[str, Any]) -> dict[str, Any]:
        with open_array(where.path / "tau") as array:
            tau = array[...]
        m, n = own["m"], own["n"]
        if tau.shape != (min(m, n),) or tau.dtype != own["dtype"]:
            raise CorruptError(f"{where.path}/tau is not of {m} x {n} {own['dtype']}; factor again")
        return {"m": m, "tau": tau, "info": own["info"]}


@dataclass(frozen=True, kw_only=True)
class TransposedQRFactor(QRFactor):
    """Factors Aᵀ = Q R on disk of an A with more columns than rows.

    `lstsq` creates and may keep them, and `open_factor` returns them. `qr_solve` uses them to find
    solutions of least norm. All attributes except ``source`` describe the factors of Aᵀ.

    Attributes
    ----------
    path, m, n, dtype, tile, tau, info, norm1, source, places, report
        As for a `QRFactor`.
    """

    kind: ClassVar[Kind] = QR_TRANSPOSED


def refuse_others(given: object, *wanted: type[Factor]) -> None:
    """Raise unless `given` is a factor of a wanted kind.

    Raises
    ------
    InvalidError
        If it is not.
    """
    if isinstance(given, wanted):
        return
    titles = " or ".join(each.kind.title for each in wanted)
    function = wanted[0].kind.function
    if isinstance(given, Factor):
        name = type(given).__name__
        fix = (
            "factors of LU are for lu_solve, those of Cholesky for cho_solve, those of QR for "
            "qr_solve"
        )
    elif (found := in_memory(given)) and not isinstance(given, ArrayOperand):
        name = f"{found} in memory"
        fix = (
            f"put the matrix on disk with oc.from_array and factor it with {function}, or use "
            "scipy.linalg"
        )
    else:
        name = type(given).__name__
        fix = f"factor a matrix with {function}, or open what that left with open_factor"
    raise InvalidError(f"need {titles} factors, have {name}; {fix}")


def open_factor(path: PathLike) -> LUFactor | CholeskyFactor | QRFactor:
    """Open factors that `lu_factor`, `cho_factor`, `qr_factor` or `lstsq` wrote to disk.

    Parameters
    ----------
    path
        Directory of the factors, on a local disk or in a pool.

    Returns
    -------
    LUFactor, CholeskyFactor, QRFactor or TransposedQRFactor
        The factors, for the solver of their kind.

    Raises
    ------
    NotFoundError, CorruptError, TruncatedError
        If there are none, or they are damaged.
    IncompleteError
        If the factorization was stopped. Another call of its function resumes it.
    """
    where = place(path)
    kind, _ = read_any_group(where)
    factors = LUFactor, CholeskyFactor, QRFactor, TransposedQRFactor
    return next(each.open(where) for each in factors if each.kind is kind)


def tile_metadata(
    m: int, dtype: np.dtype[Any], tile: tuple[int, int], n: int | None = None
) -> Metadata:
    """Return the metadata of a factor's array of tiles, (m, n); square unless `n` is given."""
    shape = (m, m if n is None else n)
    return Metadata(shape, dtype, tile, order="F", chunk_order="column-major")


def tile_grid(
    m: int,
    dtype: np.dtype[Any],
    tile: tuple[int, int],
    places: Sequence[int],
    slot_align_bytes: int,
) -> Grid:
    """Return the grid of whole tiles: m rows rounded up to tiles, each panel at its place."""
    rows, columns = tile
    shape = [-(-m // rows) * rows, len(places) * columns]
    in_order = list(places) == list(range(len(places)))
    return Grid(
        shape, list(tile), dtype.itemsize, "F", "column-major", slot_align_bytes,
        None if in_order else list(places),
    )  # fmt: skip


def open_tiles(
    where: Place,
    kind: Kind,
    grid: Grid,
    arena: Arena,
    trace: Trace | None = None,
    *,
    writable: bool = False,
    bounce_bytes: int = TILE_BOUNCE_BYTES,
) -> ArrayFile:
    """Open the array of a factor as a file of whole tiles, padding included.

    Tiles are aligned. Bounce buffers serve other transfers, and disks with blocks larger than a
    page.
    """
    name = where.inside(kind.array)
    return ArrayFile(where.volume, name, grid, writable, arena, bounce_bytes, trace, 1)


def write_group(where: Place, kind: Kind, state: str, values: dict[str, Any]) -> None:
    """Write ``zarr.json`` of the group."""
    document = group_json({"outcore": {"kind": kind.name, "state": state, **values}})
    where.replace_small("zarr.json", document)


def remove_factors(where: Place) -> None:
    """Remove factors. The file that declares them goes first, so a killed removal leaves none."""
    if where.exists():
        where.volume.remove(where.inside("zarr.json"))
    where.volume.remove(where.name)


def read_any_group(where: Place) -> tuple[Kind, dict[str, Any]]:
    """Read the kind and the attributes of a factor's group.

    Raises
    ------
    NotFoundError
        If there is no factor.
    CorruptError
        If its metadata cannot be read.
    """
    if not where.exists():
        raise NotFoundError(
            f"there is no factor at {where.path}; make one with lu_factor, cho_factor or qr_factor"
        )
    try:
        own = json.loads(where.volume.read_small(where.inside("zarr.json")))["attributes"][
            "outcore"
        ]
        kind = KINDS[own["kind"]]
        needed = _COMPLETE | kind.keys if own["state"] == "complete" else _INCOMPLETE
        if missing := needed - own.keys():
            raise KeyError(*missing)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{where.path}/zarr.json does not describe factors ({error!r}); "
            "check the path, or factor again"
        ) from error
    return kind, dict(own)


def read_group(where: Place, kind: Kind = LU) -> dict[str, Any]:
    """Read the attributes of a factor's group, of one kind.

    Raises
    ------
    NotFoundError, CorruptError
        As for `read_any_group`, and if it is of another kind.
    """
    found, own = read_any_group(where)
    if found is not kind:
        raise CorruptError(
            f"{where.path} holds {found.title} factors, not {kind.title} factors; check the path"
        )
    return own


def _read_complete(where: Place, kind: Kind) -> dict[str, Any]:
    own = read_group(where, kind)
    if own["state"] != "complete":
        raise IncompleteError(
            f"the factorization in {where.path} was stopped; call {kind.function} on "
            f"{own['source']} again to finish it"
        )
    return own
