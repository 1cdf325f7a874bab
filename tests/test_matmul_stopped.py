"""Refused, interrupted and killed products: no half-written result is reported as whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import names_below
from linpack import one_thread as one_thread
from stopping import at_line, in_a_fork

import outcore as oc
from outcore._util import budget
from outcore.array_files.metadata import read_metadata
from outcore.errors import (
    BudgetError,
    BusyError,
    DiskFullError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
    NotFoundError,
)
from outcore.linalg._output.result import written
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._products.matmul import matmul
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import exclusive, place

MEMORY = 450_000
module = sys.modules["outcore.linalg._products.matmul"]
Matrix = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture
def square(tmp_path: Path) -> oc.Array:
    a = np.random.default_rng(0).standard_normal((256, 256))
    return oc.from_array(a, tmp_path / "A", order="F", chunks=(64, 64), progress=False)


def refused(kind: type[Exception], match: str, *operands: Any, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        matmul(*operands, **({"memory": MEMORY, "progress": False} | options))


def test_bad_input(tmp_path: Path, square: oc.Array) -> None:
    before = names_below(tmp_path)
    ones, out = np.ones((256, 3)), tmp_path / "C"
    refused(InvalidError, r"op\(A\) is 256 x 256 and op\(B\) 255 x 3: the 256", square, ones[1:])
    refused(InvalidError, "256 columns .* 3 rows", square, ones, trans_b="T", out=out)
    refused(InvalidError, r"need a matrix or a vector as B, have \(256, 1, 1\)", square,
            ones[:, :1, None])  # fmt: skip
    refused(InvalidError, r"as B, have \(\)", square, 3.0)
    refused(InvalidError, "trans_a must be 'N', 'T' or 'C'", square, ones, trans_a="H")
    refused(InvalidError, "trans_b must be", square, ones, trans_b=3)
    refused(InvalidError, "A has elements of object; need numbers", ones.astype(object), ones)
    refused(InvalidError, "threads must be", square, ones, threads=0)
    refused(InvalidError, "cannot read 'much'", square, ones, memory="much")
    refused(NotFoundError, "no array at", tmp_path / "nothing", ones)
    refused(InvalidError, "cannot be on disk", square, np.ones((256, 0)), out=out)
    refused(InvalidError, "from 0 terms", np.ones((4, 0)), np.ones((0, 3)), out=out)
    vector = np.ones(256) * 1j
    refused(InvalidError, "B is a vector, which has no conjugate", 1j * ones.T, vector, trans_b="C")
    assert names_below(tmp_path) == before


def test_types_on_disk_are_promoted(tmp_path: Path, square: oc.Array) -> None:
    draw = np.random.default_rng(1)
    single = draw.standard_normal((256, 256)).astype("f4")
    whole = draw.integers(-9, 9, (256, 256)).astype("i4")
    for name, right in (("single", single), ("whole", whole)):
        B = oc.from_array(right, tmp_path / name, progress=False)
        C = matmul(square, B, memory=MEMORY, progress=False)
        assert C.dtype == np.float64
        np.testing.assert_allclose(C, square[...] @ right, rtol=0, atol=1e-10)
    C = matmul(square, 1j * single[:, :3], memory=MEMORY, progress=False)
    np.testing.assert_allclose(C, square[...] @ (1j * single[:, :3]), rtol=0, atol=1e-10)


def test_unfinished_and_consumed_operands_are_refused(tmp_path: Path, square: oc.Array) -> None:
    with oc.open_array(square.path, "r+") as array:
        array.mark("incomplete", "it was stopped")
    refused(IncompleteError, "only half written: it was stopped", square.path, square)


def test_targets_that_exist(tmp_path: Path, square: oc.Array) -> None:
    other = oc.create_array(tmp_path / "C", (3, 3))
    other[...] = 7.0
    refused(ExistsError, "choose another out=", square, square, out=tmp_path / "C")
    assert (oc.open_array(tmp_path / "C")[...] == 7).all()
    (tmp_path / "D").mkdir()
    (tmp_path / "D" / "thesis.tex").touch()
    (tmp_path / "E").write_text("data")
    for name in "DE":
        refused(ExistsError, "exists", square, square, out=tmp_path / name, if_exists="overwrite")
    assert (tmp_path / "D" / "thesis.tex").exists()
    for same in (square.path, tmp_path / "." / "A"):
        refused(
            InvalidError, "is an operand itself", square, square, out=same, if_exists="overwrite"
        )
        refused(InvalidError, "is an operand itself", np.ones((4, 256)), square.path, out=same)
    (tmp_path / "link").symlink_to(square.path)
    refused(InvalidError, "is an operand itself", square, square, out=tmp_path / "link")
    C = matmul(
        square, square, out=tmp_path / "C", if_exists="overwrite", memory=MEMORY, progress=False
    )
    np.testing.assert_allclose(C[...], square[...] @ square[...], atol=1e-12)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A", "C", "D", "E", "link"]


def test_a_target_in_use_is_refused(tmp_path: Path, square: oc.Array) -> None:
    with exclusive(place(tmp_path / ".C.filling"), "another call"):
        refused(BusyError, "in use by another", square, square, out=tmp_path / "C")
    assert not (tmp_path / "C").exists()


def test_a_result_too_large_for_memory(square: oc.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 500_000)
    refused(BudgetError, "need 524288 bytes .* for the result, 500000 .* give out=", square, square)


def test_the_copy_of_an_operand_in_memory_counts(square: oc.Array) -> None:
    strided = np.ones((256, 2000))[:, ::2]
    with pytest.raises(BudgetError) as caught:
        matmul(square, strided, memory=MEMORY, progress=False)
    assert int(str(caught.value).split()[1]) > strided.nbytes
    matmul(square, np.ascontiguousarray(strided), memory=MEMORY, progress=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_disk", [False, True])
def test_a_signal_stops_it_cleanly(
    tmp_path: Path, square: oc.Array, number: signal.Signals, to_disk: bool
) -> None:
    before = names_below(tmp_path)
    out = tmp_path / "C" if to_disk else None
    add, calls = module._Multiplication.add, []

    def stop(self: Any, *arguments: Any) -> None:
        calls.append(None)  # not the arguments: one is a piece, in memory that is needed again
        if len(calls) == 9:
            signal.raise_signal(number)
        add(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Multiplication, "add", stop)
        with pytest.raises(Interrupted, match="nothing is left of it; call matmul again"):
            matmul(square, square, out=out, memory=MEMORY, progress=False)
    assert names_below(tmp_path) == before
    C = matmul(square, square, out=out, memory=MEMORY, progress=False)
    assert len(calls) == 9
    np.testing.assert_allclose(C[...], square[...] @ square[...], atol=1e-12)


def test_a_killed_product_is_recognised_and_begun_anew(
    tmp_path: Path, square: oc.Array, all_lines: bool
) -> None:
    out = tmp_path / "C"

    def work() -> None:
        matmul(square.path, square.path, out=out, memory=MEMORY, progress=False)

    want = square[...] @ square[...]
    seen = set()
    for line in range(1, 200, 1 if all_lines else 3):
        status = in_a_fork(lambda: _killed_at(line, work))  # noqa: B023
        assert status in (0, -signal.SIGKILL)
        if status == 0:
            break
        state = _state(out)
        seen.add(state)
        if state == "whole":
            subprocess.run(["rm", "-r", out], check=True)
            continue
        work()
        np.testing.assert_allclose(oc.open_array(out)[...], want, atol=1e-12)
        subprocess.run(["rm", "-r", out], check=True)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["A"]
    else:
        raise AssertionError("it never came to its end")
    assert seen == {"incomplete", "not_found", "whole"}


def _state(path: Path) -> str:
    """Return the state of an array: whole, or the kind of the error on opening it."""
    try:
        oc.open_array(path).close()
    except oc.OutcoreError as error:
        return error.kind
    return "whole"


def _killed_at(line: int, work: Any) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with at_line(line, die, ("_output/result.py",)):
        work()


def test_an_error_midway_leaves_nothing(
    tmp_path: Path, square: oc.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncate the file of A during the call, so that a read fails."""
    before = names_below(tmp_path)
    shard = square.path / "c" / "0" / "0"
    length = shard.stat().st_size
    slabs = module.MatmulGeometry.slabs

    def cut_then(self: Any) -> Any:
        os.truncate(shard, length // 2)
        return slabs(self)

    monkeypatch.setattr(module.MatmulGeometry, "slabs", cut_then)
    with pytest.raises(oc.OutcoreError) as caught:
        matmul(square, square, out=tmp_path / "C", memory=MEMORY, progress=False)
    assert caught.value.kind == "truncated"
    assert names_below(tmp_path) == before


class Unanswered(Sharing):
    """Processes that do not learn of an error of this one."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False

    def _gather(self, *more: Any) -> Any:
        raise oc.errors.DiskError("nobody answers")


def test_a_result_stays_while_another_process_may_write_it(
    tmp_path: Path, square: oc.Array
) -> None:
    where, grid = place(tmp_path / "C"), read_metadata(place(square.path))
    steps = StepsDone(where.path, "matmul", {}, {}, None, resume=False, sharing=Unanswered())
    with pytest.raises(ValueError, match="out of paper"), written(where, grid, "why", steps):
        raise ValueError("out of paper")
    assert where.exists()


def test_a_disk_too_full_is_said_before_any_work(small_disk: Path, tmp_path: Path) -> None:
    a = np.ones((4000, 64))
    A = oc.from_array(a, tmp_path / "A", progress=False)
    calls: list[float] = []
    with pytest.raises(DiskFullError, match=r"need \d+ bytes on disk .* are free"):
        matmul(A, A, trans_b="T", out=small_disk / "C", memory="8 MiB",
               progress=lambda fraction, left: calls.append(fraction))  # fmt: skip
    assert not calls
    assert [p.name for p in small_disk.iterdir()] == ["lost+found"]
    C = matmul(A, A[:100], trans_b="T", out=small_disk / "C", memory="8 MiB", progress=False)
    assert (C[...] == 64).all()
