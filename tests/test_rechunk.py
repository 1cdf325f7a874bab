"""Copies into other chunks: the elements, and their bytes and requests against the plan."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from stopping import killed_until_whole

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import copying, rechunk_plan, sources, targets
from outcore.errors import (
    BudgetError,
    CorruptError,
    DiskFullError,
    ExistsError,
    IncompleteError,
    InvalidError,
    JournalError,
)
from outcore.files.catalog import recognise
from outcore.machine.rates import NOMINAL


def let_small_arrays_need_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechunk_plan, "WORTH_BYTES", 0)
    monkeypatch.setattr(rechunk_plan, "_BLOCK_BYTES", 0)


def made(
    path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, order: str
) -> tuple[Any, oc.Array]:
    model = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return model, oc.from_array(model, path / "A", chunks=chunks, order=order, progress=False)


CASES = [
    # Planes to columns: long runs in one pass.
    ((64, 128, 128), (1, 128, 128), (32, 16, 16), "f4", "CC", 2_000_000, 1),
    ((61, 127, 129), (1, 127, 129), (61, 5, 129), "f8", "CC", 2_000_000, 1),
    ((64, 128, 128), (7, 30, 128), (20, 128, 11), "c16", "CF", 6_000_000, 2),
    # Rows to columns of a matrix: two passes, or more.
    ((1024, 1024), (1, 1024), (1024, 1), "f8", "CC", 2_000_000, 3),
    ((1000, 1030), (3, 1030), (1000, 7), "f4", "FC", 800_000, 2),
    ((1024, 1024), (1, 1024), (1024, 1), "f8", "CF", 500_000, 4),
    ((70_001,), (1000,), (3001,), "i2", "CC", 400_000, 1),
]


def as_planned(r: object, plan: oc.RelayoutPlan) -> oc.CopyReport:
    """Compare a report with the plan of all passes, and return it."""
    assert isinstance(r, oc.CopyReport)
    assert plan.is_exact
    assert (r.bytes_read, r.reads, r.bytes_written, r.writes) == (
        plan.bytes_read, plan.reads, plan.bytes_written, plan.writes,
    )  # fmt: skip
    assert r.between == plan.between
    return r


@pytest.mark.parametrize(("shape", "before", "after", "dtype", "orders", "memory", "passes"), CASES)
def test_bytes_and_requests_are_as_planned(
    tmp_path: Path, shape: Any, before: Any, after: Any, dtype: str, orders: str, memory: int,
    passes: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if passes > 1:
        let_small_arrays_need_passes(monkeypatch)
    model, A = made(tmp_path, shape, before, dtype, orders[0])
    verify = dtype == "f8"
    options = {"chunks": after, "order": orders[1], "memory": memory, "verify": verify}
    plan = oc.plan("rechunk", source=A, path=tmp_path / "B", rates=NOMINAL, **options)
    with oc.rechunk(A, tmp_path / "B", progress=False, **options) as B:
        np.testing.assert_array_equal(B[...], model)
        assert (B.chunks, B.order, B.dtype) == (after, orders[1], model.dtype)
        r = as_planned(B.report, plan)
    assert r.verified == verify
    assert plan.passes == 1 + len(plan.between) == passes
    assert r.peak_memory_bytes <= plan.peak_memory_bytes <= memory
    assert sorted(p.name for p in (tmp_path / "B").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip


@pytest.mark.parametrize(("shape", "before", "after", "dtype", "orders", "memory", "passes"), CASES)
def test_from_array_takes_the_same_passes(
    tmp_path: Path, shape: Any, before: Any, after: Any, dtype: str, orders: str, memory: int,
    passes: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if passes > 1:
        let_small_arrays_need_passes(monkeypatch)
    model, A = made(tmp_path, shape, before, dtype, orders[0])
    options: dict[str, Any] = {"chunks": after, "order": orders[1], "memory": memory}
    plan = oc.plan("rechunk", source=A, path=tmp_path / "B", rates=NOMINAL, **options)
    with oc.from_array(A, tmp_path / "B", progress=False, **options) as B:
        np.testing.assert_array_equal(B[...], model)
        r = as_planned(B.report, plan)
    assert len(r.between) == passes - 1


def damage(path: Path) -> None:
    """Invert one byte of the data of an array, or of a file."""
    file = max((p for p in [path, *path.glob("c/**/*")] if p.is_file()), key=str)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 255]))
        os.fsync(opened.fileno())


@contextmanager
def damaged_at_the_end(monkeypatch: pytest.MonkeyPatch, kind: type, number: int) -> Iterator[None]:
    """Damage the target of pass `number` once it is durable."""
    finish, finished = kind.finish, []

    def finish_and_damage(target: Any) -> None:
        finish(target)
        finished.append(target)
        if len(finished) == number:
            damage(Path(target._array.path if kind is targets.ArrayTarget else target._path))

    with monkeypatch.context() as patch:
        patch.setattr(kind, "finish", finish_and_damage)
        yield


@pytest.mark.parametrize("number", [1, 2, 3])
def test_verification_finds_a_damaged_byte(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = many_passes(monkeypatch) | {"verify": True}
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    name = "B" if number == 3 else f"outcore.between-{number}"
    with (
        damaged_at_the_end(monkeypatch, targets.ArrayTarget, number),
        pytest.raises(
            CorruptError, match=rf"elements \[\d+:\d+, \d+:\d+\] of .*{name}, .* call again"
        ),
    ):
        oc.rechunk(A, tmp_path / "B", **options)
    with watched_writes(monkeypatch, None) as again:
        B = oc.rechunk(A, tmp_path / "B", **options)
    np.testing.assert_array_equal(B[...], model)
    assert again[0][0] == name, "it resumes at the block that was damaged"
    assert "verified" in str(B.report)
    # Without verify=, nobody notices.
    with damaged_at_the_end(monkeypatch, targets.ArrayTarget, number):
        C = oc.rechunk(A, tmp_path / "C", **options | {"verify": False})
    assert np.sum(C[...] != model) == 1


def test_verification_of_blocks_that_an_earlier_call_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    model, A = made(tmp_path, (61, 67), (10, 67), "f8", "F")
    options: dict[str, Any] = {"chunks": (7, 61), "memory": 160_000, "progress": False}
    options |= {"transpose": (1, 0)}
    with watched_writes(monkeypatch, 4), pytest.raises(ZeroDivisionError):
        oc.rechunk(A, tmp_path / "B", **options)
    damage(tmp_path / "B")
    with pytest.raises(CorruptError, match="read back"):
        oc.rechunk(A, tmp_path / "B", **options, verify=True)
    with oc.rechunk(A, tmp_path / "B", **options, verify=True) as B:
        np.testing.assert_array_equal(B[...], model.T)


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "npy", "raw"])
@pytest.mark.parametrize("source", ["memory", "array"])
def test_verification_of_other_formats(
    tmp_path: Path, kind: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, A = made(tmp_path, (61, 67), (10, 67), "f4", "C")
    given = A if source == "array" else np.asfortranarray(model)[::-1, :]
    options: dict[str, Any] = {"format": kind, "verify": True, "progress": False}
    report = oc.rechunk(given, tmp_path / f"B.{kind}", **options)
    assert report.verified
    found = oc.from_array(
        tmp_path / f"B.{kind}", tmp_path / "back", progress=False,
        **({"shape": model.shape, "dtype": "f4"} if kind == "raw" else {}),
    )  # fmt: skip
    np.testing.assert_array_equal(found[...], model if source == "array" else model[::-1, :])
    if kind == "zarr":
        options["codec"] = "none"
        with (
            damaged_at_the_end(monkeypatch, targets.ZarrTarget, 1),
            pytest.raises(CorruptError, match=r"C\.zarr, as they were written"),
        ):
            oc.rechunk(given, tmp_path / "C.zarr", **options)
        assert not (tmp_path / "C.zarr").exists()


@pytest.mark.parametrize(
    ("axes", "orders"), [((2, 0, 1), "CC"), ((1, 2, 0), "FC"), ((2, 1, 0), "CF")]
)
def test_transposes_are_counted_too(tmp_path: Path, axes: Any, orders: str) -> None:
    model, A = made(tmp_path, (40, 70, 90), (7, 70, 30), "f4", orders[0])
    options = {
        "chunks": (30, 20, 16), "order": orders[1], "memory": 600_000, "transpose": axes,
    }  # fmt: skip
    plan = oc.plan("rechunk", source=A, path=tmp_path / "B", rates=NOMINAL, **options)
    with oc.rechunk(A, tmp_path / "B", progress=False, **options) as B:
        np.testing.assert_array_equal(B[...], model.transpose(axes))
        as_planned(B.report, plan)


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "npy"])
def test_other_formats(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    let_small_arrays_need_passes(monkeypatch)
    model = np.arange(512 * 500, dtype="f8").reshape(512, 500)
    zarr.create_array(tmp_path / "rows.zarr", data=model, chunks=(1, 500))
    name = tmp_path / f"out.{kind}"
    given: dict[str, Any] = {"transpose": (1, 0)} if kind == "npy" else {"chunks": (512, 1)}
    given |= {"format": kind, "memory": 1_000_000}
    plan = oc.plan("rechunk", source=tmp_path / "rows.zarr", path=name, **given)
    report = oc.rechunk(tmp_path / "rows.zarr", name, progress=False, **given)
    assert report.times_read == 1.0, "each chunk is decoded once"
    assert report.between == plan.between != ()
    for moved in (plan.bytes_read, plan.bytes_written):
        assert 1 <= moved / (len(plan.blocks) * model.nbytes) < 1.05, "slots are whole pages"
    assert (plan.disk_bytes, plan.is_exact) == (model.nbytes, False)
    assert plan.chunks == (model.T.shape if kind == "npy" else (512, 1))
    assert any("smaller than stated" in note for note in plan.notes) == (kind == "zarr")
    with oc.from_array(name, tmp_path / "back", progress=False) as back:
        np.testing.assert_array_equal(back[...], model.T if kind == "npy" else model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", name.name, "rows.zarr"]
    with pytest.raises(ExistsError):
        oc.rechunk(model, name, format=kind, progress=False)


def test_a_pass_releases_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that stays open holds the memory of all blocks of its call."""
    let_small_arrays_need_passes(monkeypatch)
    begun: list[sources.Stored] = []
    begin = sources.Stored.begin

    def watched(self: sources.Stored, *given: Any) -> None:
        assert all(each._file is None for each in begun)
        begun.append(self)
        begin(self, *given)

    monkeypatch.setattr(sources.Stored, "begin", watched)
    a = oc.from_array(np.ones((512, 500)), tmp_path / "A", chunks=(1, 500), progress=False)
    with oc.rechunk(a, tmp_path / "B", **many_passes(monkeypatch)) as b:
        assert len(begun) == len(b.report.between) + 1 > 2
        assert b.report.bytes_read > a.nbytes


def many_passes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments of a copy in three passes, which notes each block."""
    let_small_arrays_need_passes(monkeypatch)
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    return {"chunks": (512, 1), "memory": 600_000, "progress": False}


@contextmanager
def watched_writes(
    monkeypatch: pytest.MonkeyPatch, at: int | None
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Yield the list of writes; let number `at` fail."""
    written: list[tuple[str, tuple[int, ...]]] = []
    write = targets.ArrayTarget.write

    def watched(target: Any, box: Any, data: Any) -> Any:
        if len(written) == at:
            raise ZeroDivisionError
        written.append((target._array.path.name, tuple(s.start for s in box)))
        return write(target, box, data)

    with monkeypatch.context() as patch:
        patch.setattr(targets.ArrayTarget, "write", watched)
        yield written


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.95])
def test_it_resumes_in_each_pass(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    with watched_writes(monkeypatch, None) as all_writes:
        oc.rechunk(A, tmp_path / "whole", **options).close()
    with (
        watched_writes(monkeypatch, int(share * len(all_writes))) as first,
        pytest.raises(ZeroDivisionError),
    ):
        oc.rechunk(A, tmp_path / "B", **options)
    with pytest.raises(IncompleteError, match="again with the same arguments"):
        oc.open_array(tmp_path / "B")
    assert (entry := recognise(tmp_path / "B")) is not None
    assert entry.state == "incomplete"
    # Another budget does not change the blocks that are done.
    with watched_writes(monkeypatch, None) as second:
        B = oc.rechunk(A, tmp_path / "B", **options | {"memory": 2_000_000})
    np.testing.assert_array_equal(B[...], model)
    assert set(first) | set(second) == {
        ("B" if name == "whole" else name, at) for name, at in all_writes
    }
    assert len(set(first) & set(second)) <= 8, "no more than the blocks in flight are repeated"
    assert isinstance(B.report, oc.CopyReport)
    assert len(B.report.between) == 2
    assert "in 3 passes" in str(B.report)
    assert sorted(p.name for p in (tmp_path / "B").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip
    with watched_writes(monkeypatch, 0):
        oc.rechunk(A, tmp_path / "B", **options, if_exists="open").close()


def test_finished_passes_are_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass decodes chunks of 256 kB, for which the second budget is too small."""
    options = many_passes(monkeypatch) | {"memory": 1_300_000}
    model = np.arange(512 * 500.0).reshape(512, 500)
    zarr.create_array(tmp_path / "A", data=model, chunks=(64, 500))
    with watched_writes(monkeypatch, None) as all_writes:
        oc.rechunk(tmp_path / "A", tmp_path / "whole", **options).close()
    assert [name for name, _ in all_writes[-8:]] == ["whole"] * 8, "the last pass writes 8 blocks"
    with watched_writes(monkeypatch, len(all_writes) - 4), pytest.raises(ZeroDivisionError):
        oc.rechunk(tmp_path / "A", tmp_path / "B", **options)
    with pytest.raises(BudgetError):
        oc.rechunk(tmp_path / "A", tmp_path / "C", **options | {"memory": 600_000})
    with monkeypatch.context() as patch, watched_writes(patch, None) as second:
        patch.setattr(copying, "array_passes", None)
        with oc.rechunk(tmp_path / "A", tmp_path / "B", **options | {"memory": 600_000}) as B:
            np.testing.assert_array_equal(B[...], model)
            assert len(B.report.between) == 1
    assert second == [("B", at) for _, at in all_writes[-len(second) :]]


def test_between_a_directory_and_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with oc.Pool.embedded([tmp_path / "one", tmp_path / "two"]) as pool:
        with (
            watched_writes(monkeypatch, 40),
            pytest.raises(ZeroDivisionError),
        ):
            oc.rechunk(A, pool / "B", **options)
        with oc.rechunk(A, pool / "B", **options) as B:
            np.testing.assert_array_equal(B[...], model)
            assert isinstance(B.report, oc.CopyReport)
            assert len(B.report.between) == 2
        assert not {path.name for path in (pool / "B").iterdir()} & set(blocks_done.BETWEEN)
        given = options | {"chunks": (1, 500)}
        with oc.rechunk(pool / "B", tmp_path / "C", **given) as C:
            np.testing.assert_array_equal(C[...], model)


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    with watched_writes(monkeypatch, 5), pytest.raises(ZeroDivisionError):
        oc.rechunk(A, tmp_path / "B", **options)
    A[0, 0] = 7.0
    for changed in ({}, {"transpose": (0, 1)}):
        with pytest.raises(JournalError, match="if_exists='overwrite'"):
            oc.rechunk(A, tmp_path / "B", **options, **changed)
    with oc.rechunk(A, tmp_path / "B", **options, if_exists="overwrite") as B:
        assert B[0, 0] == 7.0
        np.testing.assert_array_equal(B[1:], model[1:])
    with watched_writes(monkeypatch, 5), pytest.raises(ZeroDivisionError):
        oc.rechunk(model, tmp_path / "C", **options)
    names = {p.name for p in (tmp_path / "C").iterdir()}
    assert not names & set(blocks_done.BETWEEN), "a copy from memory restarts, so it keeps nothing"
    with oc.rechunk(model, tmp_path / "C", **options) as C:
        np.testing.assert_array_equal(C[...], model)


@st.composite
def relayouts(draw: Any) -> tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 5, 8, 13, 24]), min_size=1, max_size=4)))
    axes = draw(st.permutations(range(len(shape))))

    def layout(extents: tuple[int, ...]) -> dict[str, Any]:
        return {
            "chunks": tuple(draw(st.integers(1, n + 3)) for n in extents),
            "order": draw(st.sampled_from("CF")),
            "chunk_order": draw(st.sampled_from(["row-major", "column-major"])),
        }

    after = layout(tuple(shape[d] for d in axes))
    memory = draw(st.sampled_from([140_000, 200_000, 4_000_000]))
    return shape, layout(shape), after | {"transpose": axes, "memory": memory}


@examples(60)
@given(relayouts(), st.sampled_from(["i1", "f4", "f8", "c16", "bool"]), st.integers(1, 3))
def test_any_layouts(case: Any, dtype: str, rng: int) -> None:
    shape, before, after = case
    model = np.random.default_rng(rng).integers(0, 2, shape).astype(dtype)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        let_small_arrays_need_passes(patch)
        A = oc.from_array(model, f"{name}/A", progress=False, **before)
        plan = oc.plan("rechunk", source=A, path=f"{name}/B", rates=NOMINAL, **after)
        with oc.rechunk(A, f"{name}/B", progress=False, **after) as B:
            np.testing.assert_array_equal(B[...], model.transpose(after["transpose"]))
            as_planned(B.report, plan)


def test_the_least_budget(tmp_path: Path) -> None:
    model, A = made(tmp_path, (61, 67), (10, 67), "f8", "C")
    with pytest.raises(BudgetError, match=r"need (\d+) bytes .* raise memory=") as caught:
        oc.rechunk(A, tmp_path / "B", chunks=(61, 7), memory=50_000)
    found = re.search(r"need (\d+) bytes", str(caught.value))
    assert found is not None
    assert not (tmp_path / "B").exists()
    least = int(found[1])
    with pytest.raises(BudgetError, match=f"need {least} bytes"):
        oc.plan("rechunk", source=A, chunks=(61, 7), memory=least - 1, rates=NOMINAL)
    with oc.rechunk(A, tmp_path / "B", chunks=(61, 7), memory=least, progress=False) as B:
        np.testing.assert_array_equal(B[...], model)


def test_a_disk_without_room_between_passes(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")  # 2 MB
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    with (small_disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - (3 << 20))
    with pytest.raises(DiskFullError, match="array between two passes"):
        oc.rechunk(A, small_disk / "B", **options)
    with pytest.raises(DiskFullError):
        oc.plan(
            "rechunk",
            source=A,
            path=small_disk / "B",
            rates=NOMINAL,
            chunks=(512, 1),
            memory=600_000,
        ).validate()
    assert not (small_disk / "B").exists()
    # A transpose takes the same passes.
    transpose: dict[str, Any] = {"kind": "transpose", "chunks": (1, 512), "memory": 600_000}
    with pytest.raises(DiskFullError, match="array between two passes"):
        oc.permute(A, small_disk / "B", **transpose, progress=False)
    plan = oc.plan("permute", source=A, path=small_disk / "B", rates=NOMINAL, **transpose)
    with pytest.raises(DiskFullError):
        plan.validate()
    assert not (small_disk / "B").exists()
    with oc.permute(A, tmp_path / "T", **transpose, progress=False) as T:
        assert T.report.passes == plan.passes == len(T.report.pass_seconds) > 1
        assert sum(T.report.pass_seconds) == pytest.approx(T.report.seconds)
    # No plan promises passes of from_array.
    with oc.from_array(A, small_disk / "B", **options) as B:
        np.testing.assert_array_equal(B[...], model)
        assert B.report.between == ()
    shutil.rmtree(small_disk / "B")
    # Another program takes the room after the check.
    with monkeypatch.context() as patch:
        patch.setattr(copying, "_lack_of_room", lambda *_: "")
        with pytest.raises(DiskFullError):
            oc.rechunk(A, small_disk / "B", **options)
    (small_disk / "filler").unlink()
    with watched_writes(monkeypatch, None) as all_writes:
        oc.rechunk(A, tmp_path / "whole", **options).close()
    with watched_writes(monkeypatch, len(all_writes) - 2), pytest.raises(ZeroDivisionError):
        oc.rechunk(A, small_disk / "B", **options)
    # The finished passes need no room any more.
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    with (small_disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - (64 << 10))
    with oc.rechunk(A, small_disk / "B", **options) as B:
        np.testing.assert_array_equal(B[...], model)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"transpose": (0, 0)}, "each of the dimensions"),
        ({"transpose": 1}, "each of the dimensions"),
        ({"codec": "zstd"}, "not compressed"),
        ({"chunks": (3,)}, "dimensions"),
        ({"format": "zarr", "chunk_order": "row-major"}, "no chunk_order"),
        ({"format": "npy", "if_exists": "open"}, "if_exists"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidError, match=match):
        oc.rechunk(np.ones((4, 4)), tmp_path / "B", progress=False, **options)
    assert os.listdir(tmp_path) == []


def test_a_target_inside_its_source(tmp_path: Path) -> None:
    _, A = made(tmp_path, (4, 4), (2, 2), "f8", "C")
    with pytest.raises(InvalidError, match="lies in"):
        oc.rechunk(A, tmp_path / "A" / "B", progress=False)
    with pytest.raises(InvalidError, match="onto itself"):
        oc.rechunk(A, tmp_path / "A", if_exists="overwrite", progress=False)


SCRIPT = """
import sys
from pathlib import Path
import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import rechunk_plan, targets
rechunk_plan.WORTH_BYTES = rechunk_plan._BLOCK_BYTES = 0
blocks_done.NOTE_S = 0.0
write = targets.ArrayTarget.write
def slowly(self, box, data):
    ticket = write(self, box, data)
    ticket.wait()
    print(self._array.path.name, flush=True)
    return ticket
print("ready", flush=True)
targets.ArrayTarget.write = slowly
oc.rechunk(sys.argv[1], sys.argv[2], chunks=(512, 1), memory=600_000, progress=False)
"""


def test_killed_again_and_again(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    """kill -9 in any pass loses no recorded block of any pass."""
    model, _ = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    path = tmp_path / "B"

    def start(_is_killed: bool) -> Any:
        return run_python(SCRIPT, str(tmp_path / "A"), str(path))

    killed, written = killed_until_whole(start, path, [0.0, 0.02, 0.05, 0.1, 0.1])
    with oc.open_array(path) as array:
        np.testing.assert_array_equal(array[...], model)
    with pytest.MonkeyPatch.context() as patch, watched_writes(patch, None) as once:
        oc.rechunk(tmp_path / "A", tmp_path / "C", **many_passes(patch)).close()
    assert written <= len(once) + 8 * killed
    # The last kill may come when the array is complete, before the call removes its journal.
    left = {p.name for p in path.iterdir()} - {"outcore.copy"}
    assert left == {"c", "outcore.generation", "zarr.json"}
