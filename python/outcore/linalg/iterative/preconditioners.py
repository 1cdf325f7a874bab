"""Preconditioners for methods whose steps are products with A."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import numpy as np

from outcore._util.progress import Meter
from outcore.errors import InvalidError
from outcore.layout.elements import array_of
from outcore.linalg._factors.sweeps import Sweeps, ring_bytes, sweep_bytes_of, tile_bytes
from outcore.linalg._lu.solve import refuse_singular
from outcore.linalg._output.factor import CholeskyFactor, LUFactor
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.iteration import Iteration
from outcore.linalg.iterative.plan import Demands, IterativeGeometry, Pass
from outcore.linalg.iterative.relaxation import Relaxation

Named: TypeAlias = Literal["jacobi", "sweep", "ssor"]
Saved: TypeAlias = LUFactor | CholeskyFactor
Given: TypeAlias = Named | Saved | Callable[[Any], Any] | None

BLOCK_TILES = 2
"""Tiles of saved factors in one read."""


class Preconditioner:
    """The identity. Subclasses approximate A⁻¹.

    ``times`` counts passes over A other than products with the whole matrix. ``block_reads`` counts
    reads of the diagonal blocks, and ``others_planned`` the planned bytes of factors. ``omega`` is
    the over-relaxation.
    """

    omega = 1.0

    def __init__(self, it: Iteration) -> None:
        self._it = it
        self.times: Counter[Pass] = Counter()
        self.block_reads = 0
        self.others_planned = 0

    @property
    def others_read(self) -> int:
        """Bytes read from factors."""
        return 0

    def begin(self) -> None:
        """Start the next group of right-hand sides."""

    def groups(self) -> Iterator[None]:
        """Iterate over the groups of the iteration, and start each."""
        for _ in self._it.groups():
            self.begin()
            yield

    def figures(self) -> dict[str, Any]:
        """Return the figures of the method for `Iteration.result`."""
        return {
            "times": self.times,
            "block_reads": self.block_reads,
            "others": (self.others_read, self.others_planned),
            "omega": self.omega,
        }

    def apply(self, R: Matrix, Z: Matrix) -> None:
        """Z <- M⁻¹ R."""
        Z[:] = R

    def apply_and_multiply(self, R: Matrix, Z: Matrix, Y: Matrix) -> None:
        """Z <- M⁻¹ R and Y <- A Z. Without a preconditioner Z may be R itself."""
        if Z is not R:
            self.apply(R, Z)
        self._it.passes.multiply(Z, Y)


class BlockJacobi(Preconditioner):
    """M = D, the diagonal blocks of A."""

    def apply(self, R: Matrix, Z: Matrix) -> None:
        """Z <- D⁻¹ R."""
        Z[:] = R
        self._it.blocks.solve_all(Z)
        self.block_reads += 1


class Sweep(Preconditioner):
    """One sweep of SOR from 0; with `is_symmetric` a forward and a backward one, SSOR.

    A sweep computes L z, D z and U z except for one triangle. The reads of that triangle, half of a
    pass, suffice for A z, which needs no pass of its own (Eisenstat 1981 saves them in another
    way).
    """

    def __init__(self, it: Iteration, omega: float, *, is_symmetric: bool) -> None:
        super().__init__(it)
        self.omega, self._is_symmetric = omega, is_symmetric
        self._relaxation: Relaxation
        # Strips of columns can give both products of a new z in one pass.
        self._gives_both = it.geometry.strips.by == "columns" and it.mirror is None

    def begin(self) -> None:
        """Start the next group of right-hand sides."""
        self._relaxation = Relaxation(self._it, self.omega)

    def apply(self, R: Matrix, Z: Matrix) -> None:
        """Z <- M⁻¹ R."""
        self._sweep(R, Z, gives_both=False)

    def apply_and_multiply(self, R: Matrix, Z: Matrix, Y: Matrix) -> None:
        """Z <- M⁻¹ R and Y <- A Z."""
        self._sweep(R, Z, gives_both=self._gives_both)
        if self._is_symmetric:
            self._relaxation.refresh("L", Z)
            self.times["lower"] += 1
        elif not self._gives_both:
            self._relaxation.refresh("U", Z)
            self.times["upper"] += 1
        self._relaxation.product_into(Y)

    def _sweep(self, R: Matrix, Z: Matrix, *, gives_both: bool) -> None:
        Z[:] = 0
        self._relaxation.clear()
        is_both = gives_both and not self._is_symmetric
        self._relaxation.sweep(Z, R, is_forward=True, triangles=["L", "U"] if is_both else ["L"])
        self.times["sweep" if is_both else "lower"] += 1
        self.block_reads += 1
        if self._is_symmetric:
            self._relaxation.sweep(Z, R, is_forward=False, triangles=["U"])
            self.times["upper"] += 1
            self.block_reads += 1


class Factors(Preconditioner):
    """M = P⁻¹ L U or L Lᴴ, from disk: of a matrix like A, or of A in single precision."""

    def __init__(self, it: Iteration, factor: Saved) -> None:
        super().__init__(it)
        # These passes report bytes to the meter, but the meter of the call counts steps.
        call = dataclasses.replace(it.call, meter=Meter("", 1, False))
        self._sweeps, self._bytes = Sweeps(factor, call, BLOCK_TILES), sweep_bytes_of(factor)

    @property
    def others_read(self) -> int:
        """Bytes read from factors."""
        return self._sweeps.counters()[0]

    def apply(self, R: Matrix, Z: Matrix) -> None:
        """Z <- U⁻¹ L⁻¹ P R, or L⁻ᴴ L⁻¹ R."""
        Z[:] = R
        self._sweeps.solve(Z)
        self.others_planned += self._bytes


class Function(Preconditioner):
    """M⁻¹ is a function from the user, applied to the columns of a group."""

    def __init__(self, it: Iteration, function: Callable[[Any], Any]) -> None:
        super().__init__(it)
        self._function = function

    def apply(self, R: Matrix, Z: Matrix) -> None:
        """Z <- f(R)."""
        found = array_of(self._function(R.copy(order="F")), "an array from preconditioner")
        if found.shape != R.shape or not np.can_cast(found.dtype, R.dtype, "same_kind"):
            raise InvalidError(
                f"the preconditioner must return {R.dtype} of shape {R.shape}, as it is given, "
                f"have {found.dtype} of shape {found.shape}"
            )
        Z[:] = found


def check_preconditioner(given: Given, names: tuple[str, ...]) -> None:
    """Raise for an invalid preconditioner."""
    is_named = isinstance(given, str) and given in names
    if not (given is None or is_named or isinstance(given, Saved) or callable(given)):
        raise InvalidError(
            f"preconditioner must be None, {', '.join(map(repr, names))}, LU or Cholesky "
            f"factors, or a function, have {given!r}"
        )


def check_factors(factor: Saved, n: int, dtype: np.dtype[Any]) -> None:
    """Raise for factors of another order or field, or for factors that cannot solve."""
    if factor.n != n or (factor.dtype.kind == "c") > (dtype.kind == "c"):
        raise InvalidError(
            f"need factors of order {n} for {dtype}, have order {factor.n} in {factor.dtype}; "
            "factor a matrix like A"
        )
    if isinstance(factor, LUFactor):
        refuse_singular(factor)


def sweeps_in(given: Given) -> bool:
    """Whether a preconditioner sweeps over A, and so has an over-relaxation."""
    return isinstance(given, str) and given in ("sweep", "ssor")


def demands_with(given: Given, dtype: np.dtype[Any], alone: Demands) -> Demands:
    """Return the memory demands of a method with a preconditioner, from those without."""
    if given is None:
        return alone
    name: str = given if isinstance(given, str) else "a function"
    reserve_bytes = 0
    if isinstance(given, Saved):
        name = f"{'LU' if isinstance(given, LUFactor) else 'Cholesky'} factors"
        widened = tile_bytes(given) * dtype.itemsize // given.dtype.itemsize
        reserve_bytes = ring_bytes(given, BLOCK_TILES)
        reserve_bytes += BLOCK_TILES * widened * (dtype != given.dtype)
    return dataclasses.replace(
        alone,
        vectors=alone.vectors + 3 * sweeps_in(given),
        has_blocks=isinstance(given, str),
        by_triangle=sweeps_in(given),
        reserve_bytes=alone.reserve_bytes + reserve_bytes,
        way=f"{alone.way}{', ' * bool(alone.way)}preconditioned by {name}",
    )


def preconditioner_of(it: Iteration, given: Given, omega: float) -> Preconditioner:
    """Return the preconditioner that the caller chose."""
    if given is None:
        return Preconditioner(it)
    if isinstance(given, Saved):
        return Factors(it, given)
    if given == "jacobi":
        return BlockJacobi(it)
    if isinstance(given, str):
        return Sweep(it, omega, is_symmetric=given == "ssor")
    return Function(it, given)


def applied(
    given: Named | None, g: IterativeGeometry, steps: int, *, gives_product: bool
) -> tuple[dict[Pass, int], int]:
    """Count the passes over A of `steps` applications, and the reads of diagonal blocks.

    With `gives_product`, the products with A are included.
    """
    if given in (None, "jacobi"):
        return {"all": steps * gives_product}, steps if given else 0
    if given == "ssor":
        lower = steps * (1 + gives_product)
        return {"lower": lower, "upper": steps}, 2 * steps
    if gives_product and not g.demands.is_half and g.strips.by == "columns":
        return {"sweep": steps}, steps
    return {"lower": steps, "upper": steps * gives_product}, steps
