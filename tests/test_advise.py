"""Advice on layouts: its figures against counters of real reads, closed forms, and bad input."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import outcore as oc
from outcore._core import Arena
from outcore.array.access_figures import AdvisedLayout
from outcore.cli import main
from outcore.errors import BudgetError, ExistsError, InvalidError
from outcore.layout.disk_reads import DiskReads

MIB = 1 << 20
WORDS = {
    1: ["rows", "rows in order", "boxes:999", "points"],
    2: ["planes:1", "rows", "columns in order", "boxes:5x300", "points"],
    3: ["planes:0", "planes:1", "planes:2 in order", "columns", "lines:1", "boxes:20x9x33"],
    4: ["planes:3", "lines:2 in order", "boxes:3x9x8x4"],
}


def create(path: Path, advice: oc.Advice, layout: AdvisedLayout) -> oc.Array:
    return oc.create_array(
        path, advice.shape, advice.dtype,
        chunks=layout.chunks, order=layout.order, chunk_order=layout.chunk_order,
    )  # fmt: skip


def streamed(A: oc.Array, advice: oc.Advice, word: str) -> tuple[int, int, int]:
    """Read the sample of a word; return the reads, and the file's bytes and requests."""
    boxes = advice.sample(word)
    stream = A.stream(boxes, memory=advice.memory_bytes)
    for _ in stream:
        pass
    if stream.file.read_granularity != DiskReads():
        pytest.skip("this disk has blocks of another size than 512 bytes")
    nbytes, _, requests, _ = stream.file.counters()
    return len(boxes), nbytes, requests


def runs_on_disk(A: oc.Array, boxes: list[Any]) -> int:
    """Count runs of adjacent chunks by the index at the end of the array's file."""
    slot = -(-math.prod(A.chunks) * A.dtype.itemsize // 4096) * 4096
    counts = [-(-n // c) for n, c in zip(A.shape, A.chunks, strict=True)]
    with (Path(str(A.path)) / "/".join("c" + "0" * A.ndim)).open("rb") as file:
        file.seek(-4 - 16 * math.prod(counts), 2)
        offsets = np.frombuffer(file.read()[:-4], "<u8").reshape(*counts, 2)[..., 0]
    found = 0
    for box in boxes:
        wanted = {
            int(offset)
            for at, offset in np.ndenumerate(offsets)
            if all(s.start < (i + 1) * c and s.stop > i * c
                   for s, i, c in zip(box, at, A.chunks, strict=True))
        }  # fmt: skip
        found += sum(offset - slot not in wanted for offset in wanted)
    return found


@pytest.mark.exhaustive(every=4)
@pytest.mark.parametrize("seed", range(24))
def test_figures_are_those_of_real_reads(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = 1 + seed % 4
    shape = tuple(int(n) for n in rng.integers(5, (3_000_000, 2500, 160, 44)[dims - 1], dims))
    dtype = ("i1", "f4", "f8", "c16")[rng.integers(4)]
    words = [str(word) for word in rng.choice(WORDS[dims], 2, replace=False)]
    advice = oc.advise(shape, dtype, access=words, memory=(None, "150 MB")[rng.integers(2)])
    assert advice.best.cost <= advice.default.cost
    for name, layout in (("best", advice.best), ("default", advice.default)):
        A = create(tmp_path / name, advice, layout)
        for word, one in zip(words, layout.figures, strict=True):
            boxes = advice.sample(word)
            reads, nbytes, requests = streamed(A, advice, word)
            assert (one.access, one.reads) == (word, reads)
            assert (one.bytes_read, one.requests) == (nbytes, requests), (shape, dtype, layout)
            wanted = sum(A[box].nbytes for box in boxes)
            assert one.bytes_wanted == wanted
            assert one.places == runs_on_disk(A, boxes)


POOL_CASES = [
    ((64, 128, 64), 4, ["planes:0", "planes:2"]),
    ((256, 256, 64), 3, ["planes:0", "boxes:16x32x64"]),
    ((512, 512), 2, ["columns", "rows in order"]),
    ((100, 80, 90), 3, ["planes:1", "lines:0"]),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("shape", "count", "words"), POOL_CASES)
def test_servers_send_the_wanted_bytes(
    tmp_path: Path, shape: tuple[int, ...], count: int, words: list[str]
) -> None:
    advice = oc.advise(shape, "c16", access=words, servers=count)
    assert advice.best.cost <= advice.default.cost
    with oc.Pool.embedded([tmp_path / f"disk{i}" for i in range(count)]) as pool:
        best = oc.create_array(pool / "best", shape, "c16", access=words)
        made = best.metadata.disk_schema
        assert (made and made.distribution) == advice.disk_schema
        assert (best.chunks, best.order) == (advice.chunks, advice.order)
        default = oc.create_array(pool / "default", shape, "c16")
        for A, layout in ((best, advice.best), (default, advice.default)):
            placement = A.info().placement
            assert placement is not None
            rest = {*range(count)} - {*placement.servers}
            for word, one in zip(words, layout.figures, strict=True):
                sent = np.array([sent_by_servers(pool, A, box) for box in advice.sample(word)])
                assert one.server_bytes == tuple(sent.sum(0)[[*placement.servers, *rest]]), layout
                assert one.busiest_bytes == sent.max(1).sum()


def sent_by_servers(pool: oc.Pool, A: oc.Array, box: Any) -> list[int]:
    """Read a box of an array in a pool; return the bytes that each server sent."""
    arena = Arena(1 << 28)
    file = A.open_file(arena, 64 * MIB)
    count = [s.stop - s.start for s in box]
    memory = memoryview(arena.allocate(math.prod(count) * A.dtype.itemsize))
    order: Any = A.order
    data: np.ndarray = np.ndarray(count, A.dtype, buffer=memory, order=order)  # type: ignore[type-arg]
    before = [each.bytes_read for each in pool.servers()]
    file.submit_read([s.start for s in box], [1] * len(box), data).wait()
    after = [each.bytes_read for each in pool.servers()]
    return [b - a for a, b in zip(before, after, strict=True)]


def test_planes_lie_on_all_servers() -> None:
    advice = oc.advise((256, 512, 512), "f8", access="planes:0", servers=4)
    [best], [default] = advice.best.figures, advice.default.figures
    assert best.imbalance == 1
    assert best.bytes_read == best.bytes_wanted
    assert best.server_bytes == (best.bytes_wanted // 4,) * 4
    assert best.cost < default.cost
    # One server stores a point, whatever the layout.
    [points] = oc.advise((256, 512), "f8", access="points", servers=4).best.figures
    assert points.imbalance == 4
    assert "imbalance" in str(advice)
    with pytest.raises(InvalidError, match="servers="):
        oc.advise(5, access="rows", servers=0)


def test_planes_and_columns_lie_in_one_piece() -> None:
    planes = oc.advise((512, 256, 256), "f8", access="planes:0")
    assert (planes.chunks[1:], planes.order) == ((256, 256), "C")
    [one] = planes.best.figures
    assert (one.bytes_read, one.requests, one.places) == (one.bytes_wanted, one.reads, one.reads)
    [one] = planes.default.figures
    # Chunks of 64 x 64 x 128 cut a plane into 8 parts.
    assert one.requests == 8 * one.reads
    columns = oc.advise((8192, 4096), "f8", access="columns")
    assert columns.chunks[0] == 8192
    [one] = columns.best.figures
    assert (one.bytes_read, one.requests) == (one.bytes_wanted, one.reads)
    last = oc.advise((64, 256, 512), "f4", access="planes:2")
    assert last.best.figures[0].requests == last.best.figures[0].reads


@pytest.mark.parametrize("side", [6400, 8192, 24000])
def test_arrays_of_many_terabytes_get_advice(side: int) -> None:
    advice = oc.advise((side,) * 3, "f8", access="planes:2")
    # A plane has one piece in each of a few chunks, one index thick.
    assert advice.best.chunks[2] <= 2
    assert advice.best.cost < 1.1
    assert advice.default.cost > 100


def test_weights_decide() -> None:
    shape = (4096, 4096)
    rows = oc.advise(shape, access={"rows": 1000, "columns": 1})
    columns = oc.advise(shape, access={"rows": 1, "columns": 1000})
    rows_only = oc.advise(shape, access={"rows": 5})
    assert rows_only.best.figures[0].requests == rows_only.best.figures[0].reads
    by_word = [{one.access: one.cost for one in advice.best.figures} for advice in (rows, columns)]
    assert by_word[0]["rows"] < by_word[1]["rows"]
    assert by_word[0]["columns"] > by_word[1]["columns"]


def test_all_planes_and_boxes_gain() -> None:
    cube = oc.advise((512, 512, 512), access=["planes:0", "planes:1", "planes:2"])
    assert cube.best.cost < cube.default.cost / 2
    boxes = oc.advise((512, 512, 512), access="boxes:64x64x64")
    assert boxes.best.cost < boxes.default.cost / 2


def test_reads_in_order_are_as_long_as_memory_allows() -> None:
    advice = oc.advise((4096, 1024), "f8", access="rows in order", memory=32 * MIB)
    # An eighth of the memory holds 512 rows.
    assert advice.sample("rows in order") == [
        (slice(i, i + 512), slice(0, 1024)) for i in range(0, 4096, 512)
    ]
    assert advice.best.figures[0].bytes_read == 4096 * 1024 * 8
    columns = oc.advise((1000, 999), "f8", access="columns in order", memory=MIB)
    boxes = columns.sample("columns in order")
    assert len(boxes) == 16
    assert all((b[0], b[1].start % 16) == (slice(0, 1000), 0) for b in boxes)
    assert {b[1].stop - b[1].start for b in boxes} <= {16, 999 % 16}


def test_words_are_read_as_people_write_them() -> None:
    advice = oc.advise(100, access=["  Rows   in ORDER ", "rows"])
    assert advice.access == {"rows in order": 1.0, "rows": 1.0}
    assert advice.sample("ROWS") == [(slice(0, 100),)]


def test_advice_can_be_printed_and_stored() -> None:
    advice = oc.advise((300, 200, 100), "f4", access={"planes:0": 3, "columns": 1})
    text = str(advice)
    for part in ("best: ", "default: ", "planes:0", "columns", "read/wanted", "300 x 200 x 100"):
        assert part in text
    assert json.loads(json.dumps(advice.to_dict()))["best"]["chunks"] == list(advice.chunks)


def test_create_array_follows_and_keeps_the_words(tmp_path: Path) -> None:
    words = {"planes:2": 3, "columns": 1}
    advice = oc.advise((60, 50, 70), "f4", access=words)
    with oc.create_array(tmp_path / "A", (60, 50, 70), "f4", access=words) as A:
        assert (A.chunks, A.order) == (advice.chunks, advice.order)
        assert A.metadata.chunk_order == advice.chunk_order
        A[:, :, 3] = 1
    with oc.open_array(tmp_path / "A") as A:
        assert A.access == advice.access == {"planes:2": 3.0, "columns": 1.0}
        assert A[...].sum() == 3000
        assert "planes:2 (3), columns (1)" in str(A.info())
    plain = zarr.open_array(tmp_path / "A", mode="r")
    assert np.asarray(plain[:, :, 3]).min() == 1
    with oc.create_array(tmp_path / "none", 5) as none:
        assert none.access is None
        assert "access" not in str(none.info())
    A = oc.create_array(tmp_path / "A", (60, 50, 70), "f4", access=words, if_exists="open")
    assert A.access == advice.access
    with pytest.raises(ExistsError, match="has access"):
        oc.create_array(tmp_path / "A", (60, 50, 70), "f4", access="planes:2", if_exists="open")


def test_words_of_other_arrays(tmp_path: Path) -> None:
    steps = oc.create_array(tmp_path / "steps", (0, 64, 32), growing=True, access=iter(["columns"]))
    steps.append(np.arange(64 * 32.0).reshape(64, 32))
    assert (steps.chunks[0], steps.access) == (1, {"columns": 1.0})
    again = oc.open_array(tmp_path / "steps")
    assert again.access == steps.access
    assert np.array_equal(again[0], np.arange(64 * 32.0).reshape(64, 32))
    matrix = oc.create_array(tmp_path / "matrix", (64, 32), access="columns")
    assert matrix.T.access is None


def test_several_arrays_follow_the_words(tmp_path: Path) -> None:
    words: dict[str, Any] = {"planes:1": 2, "rows": 1}
    whole = np.arange(60 * 50 * 70.0).reshape(60, 50, 70)
    fill = lambda *box: (whole[box].astype("f4"), whole[box])  # noqa: E731
    paths = [tmp_path / "S", tmp_path / "K"]
    call: dict[str, Any] = {"fill": fill, "progress": False, "if_exists": "open"}
    advice = oc.advise(whole.shape, "f8", access=words, servers=1)
    for A in oc.create_arrays(paths, whole.shape, ["f4", "f8"], access=words, **call):
        assert (A.chunks, A.order, A.access) == (advice.chunks, advice.order, advice.access)
        assert A.metadata.chunk_order == advice.chunk_order
        np.testing.assert_array_equal(A[...], whole)
    with pytest.raises(ExistsError, match="has access"):
        oc.create_arrays(paths, whole.shape, ["f4", "f8"], access="planes:1", **call)
    with pytest.raises(InvalidError, match="leave them out"):
        oc.create_arrays(paths, whole.shape, chunks=5, access=words, **call)


def test_arrays_in_a_pool_follow_the_words(tmp_path: Path) -> None:
    shape, words = (64, 64, 64), ["planes:0"]
    advice = oc.advise(shape, "f8", access=words, servers=2)
    assert advice.disk_schema is not None
    with oc.Pool.embedded([tmp_path / "1", tmp_path / "2"]) as pool:
        one = oc.create_array(pool / "one", shape, access=words).metadata
        fill = lambda *box: (np.ones([s.stop - s.start for s in box]),) * 2  # noqa: E731
        call: dict[str, Any] = {"access": iter(words), "fill": fill, "progress": False}
        for A in oc.create_arrays([pool / "S", pool / "K"], shape, **call):
            assert A.metadata.disk_schema == one.disk_schema
            assert (A.chunks, A.access) == (one.chunks, one.access)
            assert A[...].all()
        group = oc.ArrayGroup(pool / "run", {"u": oc.ArraySpec(shape, access=words)})
        group.timestep({"u": np.full(shape, 2.0)})
        with oc.open_array(pool / "run" / "u") as steps:
            assert steps.metadata.disk_schema == one.disk_schema
            assert (steps.chunks, steps.access) == ((1, *one.chunks), one.access)
            assert (steps[0] == 2).all()
        spec = oc.ArraySpec(shape, chunks=(8, 8, 8), access=words)
        with pytest.raises(InvalidError, match="leave them out"):
            oc.ArrayGroup(pool / "bad", {"u": spec})


@pytest.mark.parametrize(
    "options", [{"chunks": 5}, {"order": "F"}, {"chunk_order": "hilbert"}, {"disk_schema": "block"}]
)
def test_access_chooses_the_whole_layout(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="leave them out"):
        oc.create_array(tmp_path / "A", 20, access="rows", **options)
    with pytest.raises(InvalidError, match="single numbers"):
        oc.create_array(tmp_path / "A", 0, growing=True, access="rows")
    assert not (tmp_path / "A").exists()


def test_the_command_prints_the_advice() -> None:
    words = ["--access", "planes:0=3", "--access", "rows in order"]
    done = CliRunner().invoke(main, ["advise", "40,30,20", *words, "--servers", "2", "--json"])
    advice = oc.advise((40, 30, 20), access={"planes:0": 3, "rows in order": 1}, servers=2)
    assert json.loads(done.stdout) == json.loads(json.dumps(advice.to_dict()))
    bad = CliRunner().invoke(main, ["advise", "40,30", "--access", "rows=many"])
    assert bad.exit_code == 2
    assert "have 'many'" in bad.stderr


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("diagonals", '"boxes:64x64x64"'),
        ("planes", '"planes:D"'),
        ("points in order", 'use "planes:D"'),
        ("boxes:0x3", 'use "planes:D"'),
        ([], "need a word"),
        (None, "need words for access="),
        (5, "need words for access="),
        ([3], "no access 3"),
        ("planes:2", "dimensions are 0 to 1"),
        ("boxes:2x2x2", "need 2 sides"),
        ({"rows": 0}, "positive number"),
        ({"rows": math.nan}, "positive number"),
        ({"rows": "much"}, "positive number"),
    ],
)
def test_bad_words(access: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.advise((30, 20), access=access)


def test_memory_for_two_reads() -> None:
    with pytest.raises(BudgetError, match="need 16777216 bytes"):
        oc.advise((1024, 1024), access="boxes:1024x1024", memory="10 MB")
    assert oc.advise((1 << 14, 1 << 12), access="boxes:16384x4096").memory_bytes == 1 << 30
