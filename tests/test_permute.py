"""Permutations of arrays on disk: against naive ones, with their passes, bytes and requests."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from chosen_cases import examples
from command_line import outcore
from hypothesis import given
from hypothesis import strategies as st
from stopped_copies import Fetched, noted

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert.sources import Stored
from outcore.convert.targets import ArrayTarget
from outcore.errors import (
    BudgetError,
    DiskFullError,
    ExistsError,
    IncompleteError,
    InvalidError,
    JournalError,
)
from outcore.machine.rates import NOMINAL
from outcore.permutations import geometry, gf2, permute
from outcore.permutations.bit_matrices import BIT_KINDS
from outcore.permutations.factors import gamma_rank
from outcore.permutations.shuffle import Shuffle

QUIET: dict[str, Any] = {"progress": False}
LEAST = 2048
MEMORY = 200 << 10


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arrays of some KiB have many blocks, as large arrays have."""
    monkeypatch.setattr(geometry, "LEAST_REQUEST_BYTES", LEAST)


def naive(
    data: npt.NDArray[Any], matrix: npt.NDArray[np.uint8], complement: int = 0
) -> npt.NDArray[Any]:
    """Permute by the definition, element by element."""
    index = np.arange(data.size)
    bits = index[:, None] >> np.arange(len(matrix)) & 1
    moved = np.empty_like(data.ravel())
    moved[(bits @ matrix.T % 2) @ (1 << np.arange(len(matrix))) ^ complement] = data.ravel()
    return moved.reshape(data.shape)


def random_matrix(seed: int, bits: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    while True:
        rows = rng.integers(0, 2, (bits, bits), np.uint8)
        if gf2.rank(gf2.from_rows(rows)) == bits:
            return rows


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an array of 2^13 elements, a layout of each side, a permutation and a budget."""
    extents = draw(st.sampled_from([(13,), (6, 7), (2, 5, 6), (0, 13)]))

    def chunks() -> tuple[int, ...]:
        return tuple(1 << draw(st.integers(max(n - 4, 0), n)) for n in extents)

    kind = draw(st.sampled_from([*BIT_KINDS, None, None]))
    return {
        "shape": tuple(1 << n for n in extents),
        "dtype": draw(st.sampled_from(["i1", "f4", "f8", "c16"])),
        "source": {"chunks": chunks(), "order": draw(st.sampled_from("CF"))},
        "target": {"chunks": chunks(), "order": draw(st.sampled_from("CF"))},
        "kind": kind,
        "matrix": random_matrix(draw(st.integers(0, 99)), 13) if kind is None else None,
        "complement": draw(st.integers(0, (1 << 13) - 1)),
        "memory": draw(st.sampled_from([160 << 10, 256 << 10, 1 << 20])),
    }


@given(call=calls())
@examples(20)
def test_elements_move_as_the_matrix_says(
    call: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("permuted")
    data = (np.arange(1 << 13) * 37 // 5).astype(call["dtype"]).reshape(call["shape"])
    matrix = call["matrix"] if call["kind"] is None else oc.bit_matrix(call["kind"], 13)
    with oc.from_array(data, path / "A", **call["source"], **QUIET) as source:
        options = {name: call[name] for name in ("kind", "matrix", "complement", "memory")}
        with oc.permute(source, path / "B", **options, **call["target"], **QUIET) as found:
            np.testing.assert_array_equal(found[...], naive(data, matrix, call["complement"]))
            assert found.dtype == data.dtype
            assert found.report.peak_memory_bytes <= call["memory"]


def vector(path: Path, bits: int = 16) -> npt.NDArray[np.float64]:
    data = np.random.default_rng(bits).random(1 << bits)
    oc.from_array(data, path / "A", chunks=1 << 11, **QUIET).close()
    return data


@pytest.mark.parametrize("kind", ["bit-reversal", "gray", "matrix"])
def test_passes_bytes_and_requests_are_those_of_the_bound(tmp_path: Path, kind: str) -> None:
    data, bits = vector(tmp_path), 16
    matrix = random_matrix(3, bits) if kind == "matrix" else oc.bit_matrix(kind, bits)
    plan = oc.plan(
        "permute", source=tmp_path / "A", path=tmp_path / "B", matrix=matrix, memory=170 << 10,
        rates=NOMINAL,
    )  # fmt: skip
    with oc.permute(
        tmp_path / "A", tmp_path / "B", matrix=matrix, memory=170 << 10, **QUIET
    ) as found:
        np.testing.assert_array_equal(found[...], naive(data, matrix))
    report = found.report
    assert isinstance(report, oc.PermuteReport)
    load, least = int(math.log2(report.load_bytes // 8)), int(math.log2(LEAST // 8))
    rank = gamma_rank(gf2.from_rows(matrix), least)
    bound = math.ceil(rank / (load - least))
    assert report.passes == {"gray": 1}.get(kind, bound) <= bound + 2
    assert report.request_bytes >= LEAST
    assert report.bytes_read == report.bytes_written == report.passes * data.nbytes
    assert len(report.pass_seconds) == report.passes
    assert 0 < min(report.pass_seconds) <= sum(report.pass_seconds) <= report.seconds
    for name in ("passes", "load_bytes", "request_bytes", "bytes_read", "reads", "writes"):
        assert getattr(report, name) == getattr(plan, name), name
    assert plan.bytes_written == report.bytes_written
    assert report.peak_memory_bytes <= plan.peak_memory_bytes <= plan.memory_bytes
    assert plan.between_bytes == (plan.disk_bytes if plan.passes > 1 else 0)
    assert f"passes       {plan.passes}" in str(plan.validate())
    assert report.passes > 1 or kind == "gray"
    assert sorted(p.name for p in (tmp_path / "B").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip
    assert f"in {report.passes} pass" in str(report)


AXES: list[tuple[str, dict[str, Any], Callable[[Any], Any]]] = [
    ("transpose", {}, np.transpose),
    ("transpose", {"axes": (1, 0, 2)}, lambda a: np.transpose(a, (1, 0, 2))),
    ("reverse", {}, np.flip),
    ("reverse", {"axes": -1}, lambda a: np.flip(a, -1)),
    ("rotate", {}, np.rot90),
    ("rotate", {"axes": (2, 1), "turns": -1}, lambda a: np.rot90(a, -1, (2, 1))),
    ("rotate", {"turns": 2}, lambda a: np.rot90(a, 2)),
]


@pytest.mark.parametrize("shape", [(16, 8, 32), (13, 7, 30)], ids=["powers", "others"])
@pytest.mark.parametrize(("kind", "options", "expected"), AXES)
def test_moves_by_axes_are_those_of_numpy(
    tmp_path: Path,
    kind: str,
    options: dict[str, Any],
    expected: Callable[[Any], Any],
    shape: tuple[int, ...],
) -> None:
    data = np.random.default_rng(0).random(shape).astype("f4")
    source = oc.from_array(data, tmp_path / "A", chunks=(4, 4, 8), dims="xyz", **QUIET)
    moved = expected(data)
    np.save(tmp_path / "A.npy", data)
    sources: list[Any] = [source, data, tmp_path / "A.npy"]
    for given_source in sources:
        with oc.permute(
            given_source, tmp_path / "B", kind, memory=MEMORY, chunks=(8, 4, 4),
            if_exists="overwrite", **options, **QUIET,
        ) as found:  # fmt: skip
            np.testing.assert_array_equal(found[...], moved)
            assert found.report.passes == 1
            # Writes pad chunks to whole pages.
            padded = found.report.file_bytes if shape[0] == 13 else data.nbytes
            assert data.nbytes <= found.report.bytes_written <= padded
            if given_source is source:
                names = np.array([*"xyz"])
                order = options.get("axes", (2, 1, 0)) if kind == "transpose" else None
                assert order is None or found.dims == tuple(names[list(order)])


def writes_until(monkeypatch: pytest.MonkeyPatch, fail_at: int | None) -> list[int]:
    """Count writes, and let one fail."""
    count, write = [0], ArrayTarget.write

    def watched(target: ArrayTarget, *arguments: Any) -> Any:
        if count[0] == fail_at:
            raise ZeroDivisionError
        count[0] += 1
        return write(target, *arguments)

    monkeypatch.setattr(ArrayTarget, "write", watched)
    return count


@pytest.mark.parametrize(("memory", "share"), [(170 << 10, 0), (190 << 10, 1)])
def test_the_disk_reads_the_next_load_while_one_moves_if_three_fit(
    tmp_path: Path, memory: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, write, fetch, move = vector(tmp_path), ArrayTarget.write, Stored.fetch, Shuffle.move
    moving, reads = [False], {False: 0, True: 0}

    def written(*arguments: Any) -> Any:
        ticket = write(*arguments)
        ticket.wait()  # so that its memory is idle when the next load moves
        return ticket

    def fetched(*arguments: Any) -> Any:
        reads[moving[0]] += 1
        return fetch(*arguments)

    def moved(*arguments: Any) -> None:
        moving[0] = True
        move(*arguments)
        moving[0] = False

    monkeypatch.setattr(ArrayTarget, "write", written)
    monkeypatch.setattr(Stored, "fetch", fetched)
    monkeypatch.setattr(Shuffle, "move", moved)
    with oc.permute(
        tmp_path / "A", tmp_path / "B", "bit-reversal", memory=memory, **QUIET
    ) as found:
        np.testing.assert_array_equal(found[...], naive(data, oc.bit_matrix("bit-reversal", 16)))
        report = found.report
    assert report.passes == 3
    loads = data.nbytes // report.load_bytes
    assert reads[True] == share * report.reads * (loads - 1) // loads


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("at", "memory"),
    [(530, None), (350, 4 << 20), (5, None), (0, None), (255, None), (256, None), (512, None)],
)
def test_a_stopped_call_resumes_in_its_pass(
    tmp_path: Path, at: int, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = vector(tmp_path)
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    call = lambda **more: oc.permute(  # noqa: E731
        tmp_path / "A", tmp_path / "B", "bit-reversal", **{"memory": 170 << 10, **QUIET, **more}
    )
    with monkeypatch.context() as stopping:
        writes_until(stopping, at)
        with pytest.raises(ZeroDivisionError):
            call()
    with pytest.raises(IncompleteError, match="call permute again with the same arguments"):
        oc.open_array(tmp_path / "B")
    with monkeypatch.context() as counting:
        count = writes_until(counting, None)
        with call(**({} if memory is None else {"memory": memory})) as found:
            np.testing.assert_array_equal(
                found[...], naive(data, oc.bit_matrix("bit-reversal", 16))
            )
    assert found.report.passes == 3
    per_load = found.report.load_bytes // found.report.request_bytes
    assert count[0] == found.report.writes <= 544 - at + 2 * per_load
    assert found.report.requests_before <= at
    assert not (tmp_path / "B/outcore.between-1").exists()
    with call(if_exists="open") as again:
        assert again.report.bytes_written == 0
    with pytest.raises(ExistsError, match="choose another name"):
        call()


def test_into_a_pool_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = vector(tmp_path)
    with oc.Pool.embedded([tmp_path / "one", tmp_path / "two"]) as pool:
        call = lambda source, path: oc.permute(  # noqa: E731
            source, path, "bit-reversal", memory=170 << 10, **QUIET
        )
        with monkeypatch.context() as stopping:
            writes_until(stopping, 300)
            with pytest.raises(ZeroDivisionError):
                call(tmp_path / "A", pool / "B")
        with call(tmp_path / "A", pool / "B") as there:
            np.testing.assert_array_equal(
                there[...], naive(data, oc.bit_matrix(there.report.kind, 16))
            )
            assert there.report.passes == 3
            assert there.report.requests_before > 0
        assert not (pool / "B" / "outcore.between-1").exists()
        with call(pool / "B", tmp_path / "C") as back:
            np.testing.assert_array_equal(back[...], data)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_failed_call_closes_its_intermediate_array(
    tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, between, make = vector(tmp_path), list[oc.Array](), permute._open_between

    def watched(*arguments: Any, **options: Any) -> oc.Array:
        between.append(make(*arguments, **options))
        return between[-1]

    monkeypatch.setattr(permute, "_open_between", watched)
    writes_until(monkeypatch, 300)
    source = data if in_memory else tmp_path / "A"
    with pytest.raises(ZeroDivisionError):
        oc.permute(source, tmp_path / "B", "bit-reversal", memory=170 << 10, **QUIET)
    assert [array.is_closed for array in between] == [True]
    # A call on data in memory restarts, so it keeps nothing.
    assert (tmp_path / "B/outcore.between-1").exists() != in_memory


@pytest.mark.parametrize(("kind", "expected"), [("reverse", np.flip), ("rotate", np.rot90)])
def test_moves_by_axes_resume_at_any_extent(
    tmp_path: Path, kind: str, expected: Callable[[Any], Any], fetched: Fetched
) -> None:
    data = np.random.default_rng(0).random((253, 247))
    source = oc.from_array(data, tmp_path / "A", chunks=(8, 10), **QUIET)
    call = lambda path: oc.permute(  # noqa: E731
        source, tmp_path / path, kind, memory=MEMORY, chunks=(1, 256), **QUIET
    )
    call("whole").close()
    blocks = len(fetched.anew(20))
    with pytest.raises(ZeroDivisionError):
        call("B")
    fetched.anew()
    with call("B") as found:
        np.testing.assert_array_equal(found[...], expected(data))
        assert found.report.requests_before > 0
    assert len(fetched.anew()) < blocks


@pytest.mark.parametrize(("kind", "expected"), [("reverse", np.flip), ("transpose", np.transpose)])
def test_copies_of_decoded_chunks_resume_in_the_same_blocks(
    tmp_path: Path, kind: str, expected: Callable[[Any], Any], fetched: Fetched
) -> None:
    """Chunks of 8 do not fit into the reversed extent of 61, so the blocks are uneven."""
    data = np.random.default_rng(0).random((61, 48))
    for name in "AC":
        zarr.create_array(tmp_path / name, data=data, chunks=(8, 12))
    call = lambda name, out="B": oc.permute(  # noqa: E731
        tmp_path / name, tmp_path / out, kind, memory=MEMORY, chunks=(1, 12), **QUIET
    )
    call("A", "whole").close()
    blocks = fetched.anew(5)
    with pytest.raises(ZeroDivisionError):
        call("A")
    first, done = fetched.anew(), noted(tmp_path / "B")
    assert 0 < done <= len(first)
    with pytest.raises(JournalError, match=f"half-made copy of {tmp_path}/A, and this is .*/C;"):
        call("C")
    with call("A") as found:
        np.testing.assert_array_equal(found[...], expected(data))
        assert found.report.requests_before == done
    assert first[:done] + fetched.anew() == blocks


def test_a_changed_source_and_another_permutation_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector(tmp_path)
    with monkeypatch.context() as stopping:
        writes_until(stopping, 300)
        with pytest.raises(ZeroDivisionError):
            oc.permute(tmp_path / "A", tmp_path / "B", "bit-reversal", memory=170 << 10, **QUIET)
    with pytest.raises(JournalError, match="half-made copy"):
        oc.permute(tmp_path / "A", tmp_path / "B", "gray", **QUIET)
    with oc.open_array(tmp_path / "A", "r+") as source:
        source[0] = -1
    with pytest.raises(JournalError, match="written to since"):
        oc.permute(tmp_path / "A", tmp_path / "B", "bit-reversal", **QUIET)
    with oc.permute(
        tmp_path / "A", tmp_path / "B", "gray", if_exists="overwrite", **QUIET
    ) as found:
        assert found[0] == -1
    with pytest.raises(ExistsError, match="the source and the permutation"):
        oc.permute(tmp_path / "A", tmp_path / "B", "shuffle", if_exists="open", **QUIET)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "need kind=, one of transpose, .*, or matrix=, have neither; "),
    ({"kind": "reversed"}, "need kind=, one of .*, have 'reversed'; "),
    ({"kind": ["gray"]}, r"need kind=, one of .*, have \['gray'\]; "),
    ({"matrix": [[1, 0], [1]]}, "have rows of several lengths; pass a square one"),
    ({"kind": "gray", "axes": 0}, "kind='gray' takes complement=, have axes=; leave it out"),
    ({"kind": "reverse", "complement": 1}, "kind='reverse' takes axes=, have complement=; "),
    ({"matrix": np.eye(9, dtype=int)}, r"need a 10 x 10 matrix, .*, have shape \(9, 9\); "),
    ({"matrix": np.zeros((10, 10), int)}, r"need a matrix of rank 10 over GF\(2\), .* rank 0; "),
    ({"kind": "gray", "complement": 1024}, "need complement= as 10 zeros and ones, .*1024; "),
    ({"kind": "transpose", "axes": (0, 0)}, r"need axes= that differ, have \(0, 0\); "),
    ({"kind": "transpose", "axes": 0}, "need axes= with the 2 dimensions .*, have 0; "),
    ({"kind": "transpose", "axes": 1.0}, "need axes= from 0 to 1, have 1.0; "),
    ({"kind": "rotate", "axes": 0.0}, "need axes= from 0 to 1, have 0.0; "),
    ({"kind": "reverse", "axes": 2}, "need axes= from 0 to 1, have 2; "),
    ({"kind": "rotate", "axes": 0}, "need two dimensions, axes=, to rotate in, have 0 "),
    ({"kind": "rotate", "turns": 0.5}, "need turns= as an integer, have 0.5; "),
    ({"kind": "gray", "chunks": (3, 32)}, r"need out .*, have chunks \(3, 32\) .*; pass chunks="),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.permute(np.zeros((32, 32)), tmp_path / "B", **options, **QUIET)
    assert not (tmp_path / "B").exists()


def test_bad_sources_and_full_disks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidError, match=r"need 2, 4, 8, .*, have 12, of shape \(3, 4\); "):
        oc.permute(np.zeros((3, 4)), tmp_path / "B", "gray", **QUIET)
    oc.from_array(np.zeros((32, 32)), tmp_path / "C", chunks=(5, 32), **QUIET).close()
    with pytest.raises(InvalidError, match=r"have chunks \(5, 32\) .*; copy src"):
        oc.permute(tmp_path / "C", tmp_path / "B", "gray", **QUIET)
    vector(tmp_path)
    with pytest.raises(InvalidError, match="onto itself; "):
        oc.permute(tmp_path / "A", tmp_path / "A", "gray", if_exists="overwrite", **QUIET)
    for kind in ("gray", "reverse"):
        with pytest.raises(InvalidError, match="lies in"):
            oc.permute(tmp_path / "A", tmp_path / "A" / "B", kind, **QUIET)
    monkeypatch.setattr(permute, "disk_bytes", lambda *_: (1 << 59, 1 << 59))
    with pytest.raises(DiskFullError, match=f"need {1 << 60} bytes .* are free; free some room"):
        oc.permute(tmp_path / "A", tmp_path / "B", "gray", **QUIET)
    assert not (tmp_path / "B").exists()


def test_an_array_is_replaced_only_if_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector(tmp_path)
    call = lambda **more: oc.permute(tmp_path / "A", tmp_path / "B", "gray", **QUIET, **more)  # noqa: E731
    call().close()
    need = permute.bytes_on_disk(tmp_path / "B")
    monkeypatch.setattr(permute, "disk_bytes", lambda *_: (need, 0))
    volume = type(permute.place(tmp_path / "B").volume)
    monkeypatch.setattr(volume, "free_bytes", lambda _: 0)
    with monkeypatch.context() as patch:
        patch.setattr(permute, "disk_bytes", lambda *_: (need, 1))
        with pytest.raises(DiskFullError, match=f"need {need + 1} bytes .*, {need} .* are free"):
            call(if_exists="overwrite")
    oc.open_array(tmp_path / "B").close()
    with pytest.raises(ExistsError, match="choose another name"):
        call()
    call(if_exists="overwrite").close()  # the bytes of the old array suffice


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", [800 << 10, 300 << 10], ids=["between", "the new array"])
def test_a_disk_that_fills_up_midway(
    disk_without_reserving: Path, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes the room after the check; the call resumes once there is room."""
    data, disk = vector(tmp_path), disk_without_reserving
    call = lambda: oc.permute(  # noqa: E731
        tmp_path / "A", disk / "B", "bit-reversal", memory=170 << 10, **QUIET
    )
    with monkeypatch.context() as patch:
        patch.setattr(permute, "_check_room", lambda *_, **__: None)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        with (disk / "filler").open("wb") as file:
            file.write(bytes(free - room))
            os.fsync(file.fileno())
        with pytest.raises(DiskFullError, match=r"; .*free"):
            call()
    with pytest.raises(DiskFullError, match="free some room"):
        call()
    (disk / "filler").unlink()
    with call() as found:
        np.testing.assert_array_equal(found[...], naive(data, oc.bit_matrix("bit-reversal", 16)))
    assert not (disk / "B/outcore.between-1").exists()


@pytest.mark.parametrize("kind", ["gray", "bit-reversal"])
def test_the_least_budget_is_stated_and_works(tmp_path: Path, kind: str) -> None:
    data = vector(tmp_path, 13)

    def call(memory: int) -> oc.Array:
        return oc.permute(tmp_path / "A", tmp_path / "B", kind, memory=memory, **QUIET)

    with pytest.raises(BudgetError, match=r"of memory for a load of .*, have 4096 ") as error:
        call(4096)
    need = int(str(error.value).split()[1])
    with pytest.raises(BudgetError, match=f"need {need} bytes"):
        call(need - 1)
    assert not (tmp_path / "B").exists()
    with call(need) as found:
        np.testing.assert_array_equal(found[:], naive(data, oc.bit_matrix(kind, 13)))
        assert found.report.peak_memory_bytes <= need


def test_the_command_plans_and_permutes(tmp_path: Path) -> None:
    data = vector(tmp_path, 13)
    call = ["permute", tmp_path / "A", tmp_path / "B", "--kind", "shuffle"]
    planned = outcore(*call, "--plan", "--json")
    assert json.loads(planned.stdout)["passes"] == 1
    assert not (tmp_path / "B").exists()
    assert "in 1 pass" in outcore(*call).stdout
    with oc.open_array(tmp_path / "B") as found:
        np.testing.assert_array_equal(found[:], naive(data, oc.bit_matrix("shuffle", 13)))
    oc.create_array(tmp_path / "odd", (30, 7)).close()
    turned = outcore("permute", tmp_path / "odd", tmp_path / "C", "--kind", "rotate", "--plan")
    assert "rotate, 7 x 30 float64" in turned.stdout
    assert "passes       1" in turned.stdout
