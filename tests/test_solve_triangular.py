"""Triangular systems in memory and on disk, against SciPy and against closed forms."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from chosen_cases import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from linpack import names_below, unit_roundoff
from linpack import one_thread as one_thread
from operands import op
from reported import reported
from stopping import at_line, in_a_fork
from strategies import CHUNK_ORDERS

import outcore as oc
from outcore._util import budget
from outcore.errors import (
    BudgetError,
    BusyError,
    DiskFullError,
    ExistsError,
    Interrupted,
    InvalidError,
    NonFiniteError,
    SingularMatrixError,
)
from outcore.linalg._products.solve_triangular import solve_triangular
from outcore.linalg._products.triangular_plan import TriangularSystem, triangular_geometry
from outcore.linalg._tiles.grains import Grains
from outcore.storage.volumes import exclusive, place

DTYPES = ("float32", "float64", "complex64", "complex128")
PAGE = 4096
Matrix = np.ndarray[Any, np.dtype[Any]]
module = sys.modules["outcore.linalg._products.solve_triangular"]


def random(shape: tuple[int, ...], dtype: Any = "f8", seed: int = 0) -> Matrix:
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * draw.standard_normal(shape)
    return values.astype(dtype)


def well(n: int, dtype: Any = "f8", seed: int = 0) -> Matrix:
    """Return a matrix whose two triangles are well conditioned, with or without their diagonal."""
    return (random((n, n), dtype, seed) / n + 1.5 * np.eye(n)).astype(dtype)


def stored(path: Path, a: Matrix, **layout: Any) -> oc.Array:
    layout = {"chunks": (64,) * a.ndim, "order": "F"} | layout
    array = oc.create_array(path, a.shape, a.dtype, if_exists="overwrite", **layout)
    array[...] = a
    return array


def assert_solved(got: Any, a: Matrix, b: Matrix, trans: str, **triangle: bool) -> None:
    """Check ‖b - op(T) x‖ / (‖op(T)‖ ‖x‖ ε) < 30 for each column, as in LAPACK's tests."""
    lower = triangle.get("lower", False)
    t = np.tril(a) if lower else np.triu(a)
    if triangle.get("unit_diagonal"):
        np.fill_diagonal(t, 1)
    if isinstance(got, oc.Array):
        got = oc.open_array(got.path)  # opening it would fail if it were marked incomplete
    x = got[...]
    assert x.dtype == a.dtype
    assert x.shape == b.shape
    t, wide = op(t, trans), np.result_type(a.dtype, np.float64)
    residual = b.astype(wide) - t.astype(wide) @ x.astype(wide)
    of_residual, of_t, of_x = (np.abs(v).sum(axis=0) for v in (residual, t, x))
    bound = 30 * unit_roundoff(a.dtype) * of_t.max(initial=0) * of_x
    assert (of_residual <= bound).all()


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", ["N", "T", "C"])
@pytest.mark.parametrize("lower", [False, True])
def test_as_scipy(tmp_path: Path, dtype: str, trans: Any, lower: bool) -> None:
    """Solve several groups of columns; the chunk orders alternate between the types."""
    n, k = 190, 90
    a, b = well(n, dtype), random((n, k), dtype, 1)
    want = scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower)
    for order, side_order in ("CC", "FF") if dtype in ("float32", "complex128") else ("CF", "FC"):
        T = stored(tmp_path / "T", a, order=order, chunks=(32, 64))
        B = stored(tmp_path / "B", b, order=side_order, chunks=(32, 32))
        memory = 226_000 + 8_000 * a.itemsize
        X, report = reported(
            solve_triangular,
            T,
            B,
            trans=trans,
            lower=lower,
            if_exists="overwrite",
            memory=memory,
            progress=False,
        )
        assert_solved(X, a, b, trans, lower=lower)
        np.testing.assert_allclose(X[...], want, atol=1e3 * np.finfo(dtype).eps)
        assert X.path == tmp_path / "B.x"
        assert int(report.method.split()[0]) > 1
        assert report.bytes_read == report.planned_bytes_read
        assert report.bytes_written == report.planned_bytes_written
        assert report.peak_memory_bytes <= memory
        assert report.flops == (4 if a.dtype.kind == "c" else 1) * n * n * k


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_only_the_triangle_is_used(
    tmp_path: Path, trans: Any, lower: bool, unit_diagonal: bool
) -> None:
    a, b = well(150), random((150, 20), seed=1)
    a[np.triu_indices(150, 1) if lower else np.tril_indices(150, -1)] = np.nan
    if unit_diagonal:
        np.fill_diagonal(a, np.nan)
    for T in (a, stored(tmp_path / "T", a, chunks=(64, 32))):
        X = solve_triangular(
            T, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal, memory=600_000,
            progress=False,
        )  # fmt: skip
        assert_solved(X, a, b, "NTC"[trans], lower=lower, unit_diagonal=unit_diagonal)


@pytest.mark.parametrize("kind", ["disk", "path", "C", "F", "strided", "f4"])
@pytest.mark.parametrize("side", ["disk", "path", "C", "vector", "disk vector", "int"])
@pytest.mark.parametrize("out", [False, True])
def test_operands_in_memory_and_on_disk(tmp_path: Path, kind: str, side: str, out: bool) -> None:
    a, b = well(100), random((100, 9), seed=1)
    if kind == "f4":
        a = a.astype("f4").astype("f8")
    if "vector" in side:
        b = b[:, 0]
    if side == "int":
        b = np.rint(9 * b)
    T: Any = {"C": np.ascontiguousarray(a), "F": np.asfortranarray(a), "f4": a.astype("f4")}.get(
        kind
    )
    if kind in ("disk", "path"):
        T = stored(tmp_path / "T", a, chunks=(32, 16))
        T = T if kind == "disk" else T.path
    elif kind == "strided":
        T = np.repeat(a, 2, axis=1)[:, ::2]
    B: Any = b.astype("i4") if side == "int" else b
    if side in ("disk", "path", "disk vector"):
        B = stored(tmp_path / "B", b)
        B = B if side != "path" else B.path
    if kind == "f4" and side not in ("disk", "path", "disk vector"):
        T = T.astype("f8")
    X, report = reported(
        solve_triangular, T, B, out=tmp_path / "X" if out else None, memory=500_000, progress=False
    )
    assert_solved(X, a, b, "N")
    assert isinstance(X, oc.Array) is (out or side in ("disk", "path", "disk vector"))
    assert report.peak_memory_bytes <= 500_000


@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65, 127, 129])
@pytest.mark.parametrize("lower", [False, True])
def test_sizes_one_off_each_boundary(tmp_path: Path, n: int, lower: bool) -> None:
    a = well(n)
    for k, order in ((n, "C"), (33, "F")):
        b = random((n, k), seed=1)
        T = stored(tmp_path / "T", a, order=order, chunks=(64, 64))
        X, report = reported(
            solve_triangular,
            T,
            b,
            out=tmp_path / "X",
            lower=lower,
            if_exists="overwrite",
            memory=250_000,
            progress=False,
        )
        assert_solved(X, a, b, "N", lower=lower)
        assert report.bytes_read == report.planned_bytes_read
        assert report.peak_memory_bytes <= 250_000


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    n=st.integers(1, 40),
    k=st.integers(1, 30),
    trans=st.sampled_from("NTC"),
    dtype=st.sampled_from(DTYPES),
    triangle=st.fixed_dictionaries({"lower": st.booleans(), "unit_diagonal": st.booleans()}),
)
def test_any_shape_and_layout(
    tmp_path: Path, data: st.DataObject, n: int, k: int, trans: Any, dtype: str, triangle: Any
) -> None:
    a, b = well(n, dtype), random((n, k), dtype, 1)
    arrays = {}
    for name, x in (("T", a), ("B", b)):
        arrays[name] = x
        if data.draw(st.integers(0, 3), label=f"{name} on disk"):
            arrays[name] = stored(
                tmp_path / name, x,
                chunks=data.draw(st.tuples(*[st.integers(1, 30)] * 2), label=f"chunks of {name}"),
                order=data.draw(st.sampled_from("CF"), label=f"order of {name}"),
                chunk_order=data.draw(st.sampled_from(CHUNK_ORDERS), label=f"chunks of {name}"),
            )  # fmt: skip
    memory = data.draw(st.integers(250_000, 400_000), label="memory")
    X, report = reported(
        solve_triangular, arrays["T"], arrays["B"], trans=trans, out=tmp_path / "X",
        if_exists="overwrite", memory=memory,
        progress=False, **triangle,
    )  # fmt: skip
    assert_solved(X, a, b, trans, **triangle)
    assert report.peak_memory_bytes <= memory


def test_no_right_hand_side_at_all() -> None:
    assert solve_triangular(np.eye(3), np.ones((3, 0))).shape == (3, 0)
    assert solve_triangular(np.ones((0, 0)), np.ones((0, 2))).shape == (0, 2)
    assert solve_triangular(np.ones((0, 0)), np.ones(0)).shape == (0,)


# Matrices larger than the budget with known solutions.


def test_ones_below_the_diagonal_take_differences(tmp_path: Path) -> None:
    """The inverse of the lower triangle of ones takes differences of rows: exact in integers."""
    n, k = 700, 150
    T = oc.create_array(
        tmp_path / "T", (n, n), chunks=(64, 128), progress=False,
        fill=lambda r, c: np.ones((r.stop - r.start, c.stop - c.start)),
    )  # fmt: skip
    b = np.random.default_rng(5).integers(-9, 10, (n, k)).astype("f8")
    B = stored(tmp_path / "B", b)
    X = solve_triangular(T, B, lower=True, memory=T.nbytes // 6, progress=False)
    assert (X[...] == np.diff(b, axis=0, prepend=0)).all()
    # The transpose takes differences with the row below.
    X = solve_triangular(
        T, B, lower=True, trans="T", if_exists="overwrite", memory=T.nbytes // 6, progress=False
    )
    assert (X[...] == -np.diff(b, axis=0, append=0)).all()


def test_the_triangle_of_pascal(tmp_path: Path) -> None:
    """Pascal's triangle: its inverse is the same with alternating signs."""
    n = 26
    pascal = scipy.linalg.pascal(n, kind="lower").astype("f8")
    T = stored(tmp_path / "T", pascal, chunks=(5, 7))
    X = solve_triangular(T, np.eye(n), lower=True, unit_diagonal=True, memory=300_000,
                         progress=False)  # fmt: skip
    signs = (-1.0) ** np.arange(n)
    assert (signs[:, None] * pascal * signs == X).all()


# Bytes and memory.


@pytest.mark.parametrize("trans", ["N", "T"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_the_plan_is_what_the_run_does(tmp_path: Path, trans: Any, lower: bool, dtype: str) -> None:
    n, k = 600, 500
    a, b = well(n, dtype), random((n, k), dtype, 1)
    T, B = stored(tmp_path / "T", a, chunks=None), stored(tmp_path / "B", b, chunks=None)
    memory = 14 << 20
    planned = oc.plan(
        "solve_triangular", n=n, rhs=k, dtype=dtype, memory=memory, path=tmp_path, trans=trans,
        lower=lower,
    )  # fmt: skip
    X, report = reported(
        solve_triangular, T, B, trans=trans, lower=lower, memory=memory, progress=False
    )
    assert_solved(X, a, b, trans, lower=lower)
    assert report.bytes_read == planned.bytes_read
    assert report.bytes_written == planned.bytes_written
    assert report.flops == planned.flops
    assert report.method == planned.method
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert planned.disk_bytes == sum(p.stat().st_size for p in X.path.glob("c/*/*"))


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [False, True])
def test_the_plan_counts_the_memory_that_is_taken(tmp_path: Path, order: str, lower: bool) -> None:
    """The plan counts all memory but bounce buffers, and every transfer here is aligned."""
    n, k = 1024, 512
    a, b = well(n), random((n, k), seed=1)
    T = stored(tmp_path / "T", a, chunks=(512, 512), order=order)
    B = stored(tmp_path / "B", b, chunks=(512, 512), order=order)
    grains = Grains.of((512, 512), order, 8)
    system = TriangularSystem(n, k, T.dtype, grains, grains, lower, (n, k), is_stored=True)
    for memory in (T.nbytes // 4, T.nbytes):
        g = triangular_geometry(system, memory)
        X, report = reported(
            solve_triangular,
            T,
            B,
            lower=lower,
            if_exists="overwrite",
            memory=memory,
            progress=False,
        )
        assert_solved(X, a, b, "N", lower=lower)
        assert report.method == g.method
        bounce_bytes = sum(g.bounce_bytes(name) for name in "TBX")
        assert report.peak_memory_bytes == g.memory_bytes - bounce_bytes
        assert g.memory_bytes <= memory
        assert report.bytes_read == g.bytes_read()


def test_one_pass_over_the_triangle_for_each_group(tmp_path: Path) -> None:
    """Each group reads n²/2 words, and half a strip more for each row."""
    n = 512
    a = well(n)
    T = stored(tmp_path / "T", a, chunks=(64, 64))
    for k, memory in ((1, 400_000), (100, 900_000), (100, 450_000)):
        b = random((n, k), seed=1)
        X, report = reported(
            solve_triangular,
            T,
            b,
            out=tmp_path / "X",
            if_exists="overwrite",
            memory=memory,
            progress=False,
        )
        assert_solved(X, a, b, "N")
        passes = int(report.method.split()[0])
        assert (passes == 1) == (memory != 450_000)
        words = report.bytes_read / 8 / passes
        assert n * n / 2 <= words <= n * n / 2 + 64 * n


def test_every_budget_from_the_least_on_suffices(tmp_path: Path) -> None:
    a, b = well(200), random((200, 60), seed=1)
    for order, chunks in (("F", (64, 64)), ("C", (50, 70))):
        T = stored(tmp_path / "T", a, order=order, chunks=chunks)
        B = stored(tmp_path / "B", b, order=order, chunks=(30, 7))
        for side, out in ((b, None), (B, tmp_path / "X")):
            with pytest.raises(BudgetError, match="need") as refused:
                solve_triangular(T, side, memory=1000, out=out, progress=False)
            least = int(str(refused.value).split()[1])
            with pytest.raises(BudgetError, match=f"need {least} "):
                solve_triangular(T, side, memory=least - 1, out=out, progress=False)
            assert not (tmp_path / "X").exists()
            for memory in (least, least + PAGE, least + 17 * PAGE, 2 * least, 5 * least):
                X, report = reported(
                    solve_triangular,
                    T,
                    side,
                    memory=memory,
                    out=out,
                    if_exists="overwrite",
                    progress=False,
                )
                assert_solved(X, a, b, "N")
                assert report.peak_memory_bytes <= memory
            if out:
                shutil.rmtree(out)


# Refused input.


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", ["N", "T"])
@pytest.mark.parametrize("zeros", [[0], [149], [70, 71, 140]])
def test_the_first_zero_on_the_diagonal_is_named(
    tmp_path: Path, lower: bool, trans: Any, zeros: list[int]
) -> None:
    a = well(150)
    a[zeros, zeros] = 0
    with pytest.raises(np.linalg.LinAlgError, match=f"diagonal {zeros[0]}$"):
        scipy.linalg.solve_triangular(a, np.ones(150), lower=lower, trans=trans)
    for T in (a, stored(tmp_path / "T", a, chunks=(32, 64))):
        before = names_below(tmp_path)
        for out in (None, tmp_path / "X"):
            with pytest.raises(
                SingularMatrixError, match=rf"T\[{zeros[0]}, {zeros[0]}\] is exactly zero"
            ) as caught:
                solve_triangular(
                    T, np.ones(150), lower=lower, trans=trans, out=out, memory=500_000,
                    progress=False,
                )  # fmt: skip
            assert caught.value.info == zeros[0] + 1
        assert names_below(tmp_path) == before
    solve_triangular(a, np.ones(150), lower=lower, trans=trans, unit_diagonal=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (149, 149), (3, 140), (64, 70), (80, 81)])
@pytest.mark.parametrize("trans", ["N", "T"])
def test_what_is_not_finite_is_named(tmp_path: Path, bad: float, at: Any, trans: Any) -> None:
    """Report non-finite elements in the triangle of T and in B, and ignore the unused triangle."""
    a, b = well(150), random((150, 40), seed=1)
    a[at] = bad
    at_once = a.T.copy()
    for T, where, lower in ((a, at, False), (at_once, at[::-1], True)):
        for matrix in (T, stored(tmp_path / "T", T, chunks=(32, 64))):
            with pytest.raises(NonFiniteError, match=r"of the triangle must be finite") as caught:
                solve_triangular(matrix, b, lower=lower, trans=trans, memory=500_000,
                                 progress=False)  # fmt: skip
            assert caught.value.index == where
    good, (row, column) = well(150), (at[0], at[1] % 40)
    b[row, column] = bad
    for side in (b, stored(tmp_path / "B", b, order="C", chunks=(30, 20))):
        with pytest.raises(NonFiniteError, match=rf"B\[{row}, {column}\] is") as caught:
            solve_triangular(good, side, trans=trans, memory=500_000, progress=False)
        assert caught.value.index == (row, column)
    assert not (tmp_path / "B.x").exists()


@pytest.mark.parametrize("at", [(3, 5), (3, 90), (5, 5)])
def test_what_is_not_finite_is_found_beside_zeros(tmp_path: Path, at: Any) -> None:
    """A BLAS may skip products with zero, and a number divided by infinity is zero."""
    a = well(100)
    a[at] = np.inf
    with pytest.raises(NonFiniteError, match="must be finite"):
        solve_triangular(stored(tmp_path / "T", a), np.zeros(100), memory=500_000, progress=False)


def test_a_solution_too_large_for_the_type_is_noted() -> None:
    t = np.full((1, 1), 1e-30, "f4")
    X, report = reported(solve_triangular, t, np.full(1, 1e20, "f4"), progress=False)
    assert np.isposinf(X).all()
    assert any("too large for the type" in note for note in report.notes)


def refused(kind: type[Exception], match: str, *operands: Any, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        solve_triangular(*operands, **({"memory": 500_000, "progress": False} | options))


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    T, b = stored(tmp_path / "T", well(100)), np.ones((100, 3))
    before = names_below(tmp_path)
    refused(InvalidError, r"need a square matrix as T, have shape \(100, 3\)", b, b)
    refused(InvalidError, r"need a square matrix as T, have shape \(100,\)", b[:, 0], b)
    refused(InvalidError, r"need a B of shape \(100,\) or \(100, k\), have \(99, 3\)", T, b[1:])
    refused(InvalidError, "need a matrix or a vector as B", T, b[None])
    refused(InvalidError, "trans must be", T, b, trans="X")
    refused(InvalidError, "dtype=float64 is real, what T and B promote to", T, 1j * b, dtype="f8")
    refused(InvalidError, "need float32, .* as dtype=, have 'i4'", T, b, dtype="i4")
    refused(InvalidError, "elements of object", b.astype(object)[:3], b[:3])
    refused(InvalidError, "threads must be", T, b, threads=-1)
    refused(InvalidError, "cannot be on disk", T, b[:, :0], out=tmp_path / "X")
    refused(InvalidError, "is an operand itself", T, b, out=T.path, if_exists="overwrite")
    with exclusive(place(tmp_path / ".X.filling"), "another call"):
        refused(BusyError, "in use by another", T, b, out=tmp_path / "X")
    with monkeypatch.context() as patch:
        patch.setattr(budget, "available_bytes", lambda: 2000)
        refused(BudgetError, "need 2400 bytes .* for the result, 2000", T, b)
    assert names_below(tmp_path) == before
    X = solve_triangular(T, b, out=tmp_path / "X", memory=500_000, progress=False)
    refused(ExistsError, "choose another out=", T, b, out=X.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_disk", [False, True])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals, to_disk: bool) -> None:
    a, b = well(200), random((200, 60), seed=1)
    T = stored(tmp_path / "T", a, chunks=(32, 64))
    before = names_below(tmp_path)
    out = tmp_path / "X" if to_disk else None
    substitute, calls = module.Substitution.substitute, []

    def stop(self: Any, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            signal.raise_signal(number)
        substitute(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Substitution, "substitute", stop)
        with pytest.raises(Interrupted, match="call solve_triangular again"):
            solve_triangular(T, b, out=out, memory=300_000, progress=False)
    assert len(calls) == 4
    assert names_below(tmp_path) == before
    X = solve_triangular(T, b, out=out, memory=300_000, progress=False)
    assert_solved(X, a, b, "N")


def test_a_killed_solve_is_recognised_and_begun_anew(tmp_path: Path) -> None:
    a, b = well(100), random((100, 30), seed=1)
    T, out = stored(tmp_path / "T", a, chunks=(32, 64)), tmp_path / "X"
    seen = set()
    for line in range(1, 200, 3):
        status = in_a_fork(lambda: _killed_at(line, T.path, b, out))  # noqa: B023
        assert status in (0, -signal.SIGKILL)
        if status == 0:
            break
        try:
            oc.open_array(out).close()
            shutil.rmtree(out)
            continue
        except oc.OutcoreError as error:
            seen.add(error.kind)
        X = solve_triangular(T, b, out=out, memory=500_000, progress=False)
        assert_solved(X, a, b, "N")
        shutil.rmtree(out)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["T"]
    assert status == 0
    assert seen == {"incomplete", "not_found"}


def _killed_at(line: int, T: Path, b: Matrix, out: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with at_line(line, die, ("_output/result.py",)):
        solve_triangular(T, b, out=out, memory=500_000, progress=False)


def test_a_disk_too_full_is_said_before_any_work(small_disk: Path, tmp_path: Path) -> None:
    T = stored(tmp_path / "T", well(1000), chunks=(256, 256))
    b = np.ones((1000, 9000))
    with pytest.raises(DiskFullError, match=r"need \d+ bytes on disk .* are free"):
        solve_triangular(T, b, out=small_disk / "X", memory="9 MiB", progress=False)
    assert [p.name for p in small_disk.iterdir()] == ["lost+found"]
    subprocess.run(["sync"], check=True)
    X = solve_triangular(T, b[:, :50], out=small_disk / "X", memory="9 MiB", progress=False)
    assert X.shape == (1000, 50)
