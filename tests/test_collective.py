"""Collectives against a naive gather and scatter: shapes, chunks, orders, schemas, strides."""

import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from chosen_cases import examples
from communicators import ThreadComm, ThreadJob, TorchComm
from hypothesis import given
from hypothesis import strategies as st
from served_pools import some_pool

import outcore as oc
from outcore.array_files import atomic_write
from outcore.errors import BudgetError, InvalidError, OutcoreError, ReadOnlyError
from outcore.storage.volumes import place
from outcore.zarr_store import PoolStore

ORDERS = ["row-major", "column-major", "hilbert", "z-order"]


@pytest.fixture(scope="module", params=["embedded", "served", "unix"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def embedded() -> Iterator[oc.Pool]:
    with some_pool("embedded") as found:
        yield found


def whole(found: list[Any]) -> list[Any]:
    """Return the results of the ranks, or raise the first error, broken barriers last."""
    raised = [each for each in found if isinstance(each, BaseException)]
    for each in sorted(raised, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise each
    return found


def owned(rule: str, n: int, processes: int, at: int) -> list[int]:
    """Indices of a process along one dimension, by the definition."""
    if rule == "*":
        return list(range(n))
    run = math.ceil(n / processes) if rule == "block" else int(rule[7:-1])
    return [i for i in range(n) if i // run % processes == at]


def strided(draw: Any, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Return an array of this shape with arbitrary strides, and other values in its gaps."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    full = [max(shape[dim], 1) * abs(steps[dim]) for dim in order]
    if draw(st.booleans()):
        record = np.zeros(full, [("a", "u1"), ("x", dtype), ("b", "f4")])
        memory = record["x"]
    else:
        memory = np.zeros(full, dtype)
    cut = tuple(slice(None, None, steps[dim]) for dim in order)
    found: npt.NDArray[Any] = memory[cut].transpose(np.argsort(order))
    return found[tuple(slice(0, n) for n in shape)]


class Case:
    """An array, and its distribution over processes."""

    def __init__(self, draw: Any) -> None:
        dims = draw(st.integers(1, 3))
        self.shape = tuple(draw(st.integers(1, 12)) for _ in range(dims))
        self.chunks = tuple(draw(st.integers(1, n)) for n in self.shape)
        self.order = draw(st.sampled_from("CF"))
        self.chunk_order = draw(st.sampled_from(ORDERS))
        self.dtype = np.dtype(draw(st.sampled_from(["u1", "f4", "f8", "c16"])))
        self.extra = draw(st.integers(0, 1))

    def content(self) -> npt.NDArray[Any]:
        return (np.arange(math.prod(self.shape)).reshape(self.shape) % 251 + 1).astype(self.dtype)


class Split:
    """The part of the array of each process: by a mesh, or by boxes."""

    def __init__(self, draw: Any, case: Case) -> None:
        shape = case.shape
        if draw(st.booleans()):
            rules = [draw(st.sampled_from(["block", "*", "cyclic(1)", "cyclic(2)"])) for _ in shape]
            counts = [1 if rule == "*" else draw(st.integers(1, 2)) for rule in rules]
            self.schema = oc.Schema(",".join(rules), mesh=counts)
            self.ranks = math.prod(counts) + case.extra
            self.parts: list[list[Any]] = [
                [
                    np.ix_(
                        *(
                            owned(rule, n, p, i)
                            for rule, n, p, i in zip(rules, shape, counts, at, strict=True)
                        )
                    )
                ]
                for at in itertools.product(*map(range, counts))
            ] + [[]] * case.extra
        else:
            cuts = [sorted({0, draw(st.integers(0, n)), n}) for n in shape]
            edges = [list(itertools.pairwise(cut)) for cut in cuts]
            boxes = [tuple(slice(a, b) for a, b in each) for each in itertools.product(*edges)]
            self.ranks = 3
            own: list[list[Any]] = [[], [], []]
            for box in boxes:
                own[draw(st.integers(0, 2))].append(box)
            self.schema = oc.Schema.boxes(own)
            self.parts = own


@examples(40)
@given(data=st.data())
def test_any_array_from_any_memory_to_any_other(pool: oc.Pool, data: st.DataObject) -> None:
    case = Case(data.draw)
    one, other = Split(data.draw, case), Split(data.draw, case)
    content = case.content()
    oc.create_array(
        pool / "u", case.shape, case.dtype, chunks=case.chunks, order=case.order,
        chunk_order=case.chunk_order, if_exists="overwrite",
    ).close()  # fmt: skip
    given_arrays = []
    for parts in one.parts:
        arrays = [strided(data.draw, content[part].shape, case.dtype) for part in parts]
        for array, part in zip(arrays, parts, strict=True):
            array[...] = content[part]
        given_arrays.append(arrays)
    targets = [
        [strided(data.draw, content[part].shape, case.dtype) for part in parts]
        for parts in other.parts
    ]

    def write(comm: ThreadComm) -> oc.CollectiveReport:
        with oc.open_array(pool / "u", "r+") as u:
            return u.write_all(given_arrays[comm.rank], one.schema, comm, timeout=60)

    def read(comm: ThreadComm) -> oc.CollectiveReport:
        with oc.open_array(pool / "u") as u:
            u.read_all(targets[comm.rank], other.schema, comm, timeout=60)
            assert u.collective_report is not None
            return u.collective_report

    with oc.open_array(pool / "u") as u:
        plans = [
            oc.plan("write_all", array=u, schema=one.schema, processes=one.ranks, rates=RATES),
            oc.plan("read_all", array=u, schema=other.schema, processes=other.ranks, rates=RATES),
        ]
    reports = [whole(ThreadJob(one.ranks).run(write))]
    with oc.open_array(pool / "u") as u:
        assert (u[...] == content).all()
    reports.append(whole(ThreadJob(other.ranks).run(read)))
    for plan, found in zip(plans, reports, strict=True):
        for report, most in zip(found, plan.messages, strict=True):
            # Servers on this machine read some of it directly; see test_collective_direct.py.
            assert (report.messages == most) == (report.direct_bytes == 0)
            assert all(report.messages[server] <= most[server] for server in most)
        assert [report.bytes_moved for report in found] == list(plan.process_bytes)
        assert plan.nbytes == content.nbytes
    for parts, arrays in zip(other.parts, targets, strict=True):
        for array, part in zip(arrays, parts, strict=True):
            assert (array == content[part]).all()
            base = array if array.base is None else array.base
            while base.base is not None:
                base = base.base
            if base.dtype.names:
                assert not base["a"].any()
                assert not base["b"].any()


def with_ghosts(shape: tuple[int, ...], width: int) -> list[list[tuple[slice, ...]]]:
    """Return the boxes of four processes in a mesh, with `width` ghost cells on each side."""
    blocks = [
        oc.Schema("block,block", mesh=(2, 2)).local_slices(shape, 4, rank) for rank in range(4)
    ]
    return [
        [
            tuple(
                slice(max(part.start - width, 0), min(part.stop + width, n))
                for part, n in zip(block, shape, strict=True)
            )
        ]
        for (block,) in blocks
    ]


@pytest.mark.parametrize("width", [1, 4])
def test_boxes_with_ghost_cells_are_read_and_not_written(pool: oc.Pool, width: int) -> None:
    """A process may have an element in two of its own boxes."""
    shape = (13, 11)
    content = np.arange(143.0).reshape(shape)
    boxes = [*with_ghosts(shape, width), [(slice(0, 9), slice(2, 7)), (slice(4, 13), slice(0, 11))]]
    schema = oc.Schema.boxes(boxes)
    u = oc.create_array(pool / "u", shape, chunks=(4, 3), order="F", if_exists="overwrite")
    u[...] = content
    with pytest.raises(InvalidError, match="overlap"):
        oc.plan("write_all", array=u, schema=schema, processes=5, rates=RATES)
    plan = oc.plan("read_all", array=u, schema=schema, processes=5, rates=RATES)
    u.close()

    def job(comm: ThreadComm) -> int:
        own = boxes[comm.rank]
        with oc.open_array(pool / "u", "r+") as u:
            found = u.read_all(None, schema, comm, timeout=60)
            for have, box in zip(found, own, strict=True):
                np.testing.assert_array_equal(have, content[box])
            assert u.collective_report is not None
            moved = u.collective_report.bytes_moved
            for atomic in (False, True):
                with pytest.raises(InvalidError, match=r"overlap, .*; leave ghost cells out"):
                    u.write_all([-each for each in found], schema, comm, timeout=60, atomic=atomic)
        return moved

    moved = whole(ThreadJob(5).run(job))
    sizes = [sum(content[box].nbytes for box in own) for own in boxes]
    assert moved == list(plan.process_bytes) == sizes
    assert plan.nbytes == sum(sizes)
    with oc.open_array(pool / "u") as u:  # complete and unchanged
        np.testing.assert_array_equal(u[...], content)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("copies", [1, 9, 16, 40, 192])
def test_a_process_has_the_same_elements_in_many_boxes(pool: oc.Pool, copies: int) -> None:
    """Its large shares travel while other processes wait for the end."""
    shape, ranks = (16, 256, 256), 6
    content = np.arange(2.0**20).reshape(shape)
    with oc.create_array(pool / "u", shape, chunks=(4, 256, 256), if_exists="overwrite") as u:
        u[...] = content
    # Planes moved by some rows, and the whole array. Four processes have nothing.
    boxes: list[list[tuple[slice, ...]]] = [[] for _ in range(ranks)]
    boxes[0] = [(slice(0, 2), slice(i % 3, 250 + i % 3), slice(0, 256)) for i in range(copies)]
    boxes[1] = [(slice(0, 16), slice(0, 256), slice(0, 256))]
    schema = oc.Schema.boxes(boxes)
    with oc.open_array(pool / "u") as u:
        plan = oc.plan("read_all", array=u, schema=schema, processes=ranks, rates=RATES)
    memory = "1 MiB" if copies <= 16 else None  # 16 copies of a piece of 64 KiB

    def job(comm: ThreadComm) -> tuple[int, int]:
        with oc.open_array(pool / "u") as u:
            found = u.read_all(None, schema, comm, memory=memory, timeout=60)
            for have, box in zip(found, boxes[comm.rank], strict=True):
                np.testing.assert_array_equal(have, content[box])
            report = u.collective_report
            assert report is not None
        return report.bytes_moved, sum(report.messages.values())

    moved = whole(ThreadJob(ranks).run(job))
    assert [each[0] for each in moved] == list(plan.process_bytes)
    assert [each[1] for each in moved] == [sum(each.values()) for each in plan.messages]


def test_more_copies_than_a_server_moves_at_once_are_refused_everywhere() -> None:
    boxes = oc.Schema.boxes([[(slice(0, 8192),)] * 193, []])
    with some_pool("served") as served:
        oc.create_array(served / "u", (8192,), "f8").close()

        def job(comm: ThreadComm) -> None:
            with oc.open_array(served / "u") as u:
                u.read_all(None, boxes, comm, timeout=60)

        for refused in ThreadJob(2).run(job):
            assert isinstance(refused, BudgetError)
            assert "need 12648448 bytes at once" in str(refused)


RATES: Any = type("Rates", (), {"read_bytes_s": 1e9, "write_bytes_s": 5e8})()


def test_pieces_that_are_cut_inside_chunks(embedded: oc.Pool) -> None:
    content = np.arange(1.5e6).reshape(1500, 1000)
    oc.create_array(
        embedded / "big", (1500, 1000), chunks=(1500, 500), if_exists="overwrite"
    ).close()

    def job(comm: ThreadComm) -> None:
        with oc.open_array(embedded / "big", "r+") as u:
            mine = np.asfortranarray(content[comm.rank :: 3])
            u.write_all(mine, "cyclic,*", comm, memory="1 MiB", timeout=60)
            back = u.read_all(None, "block,*", TorchComm(comm), memory="1 MiB", timeout=60)
            assert (back == content[comm.rank * 500 : (comm.rank + 1) * 500]).all()

    whole(ThreadJob(3).run(job))
    with oc.open_array(embedded / "big") as u:
        assert (u[...] == content).all()


def test_a_collective_counts_as_one_opening_that_wrote(embedded: oc.Pool) -> None:
    oc.create_array(embedded / "u", (9, 8), if_exists="overwrite").close()
    content = np.arange(72.0).reshape(9, 8)

    def job(comm: ThreadComm) -> list[int]:
        found = []
        with oc.open_array(embedded / "u", "r+") as u:
            for skip_disk, atomic in [(True, False), (False, True), (False, False)]:
                mine = content[comm.rank * 3 : (comm.rank + 1) * 3]
                options: Any = {"timeout": 60, "skip_disk": skip_disk, "atomic": atomic}
                u.write_all(mine, "block,*", comm, **options)
                comm.barrier()
                found.append(u.info().generation)
                comm.barrier()
            u[comm.rank, 0] = 7
            comm.barrier()
            found.append(u.info().generation)
        with oc.open_array(embedded / "u", "r+") as u:
            u.write_all(mine, "block,*", comm, timeout=60)
            comm.barrier()
            found.append(u.info().generation)
        return found

    assert whole(ThreadJob(3).run(job)) == [[1, 2, 2, 2, 3]] * 3


def test_several_files_are_done_one_after_the_other(embedded: oc.Pool) -> None:
    oc.create_array(embedded / "steps", (0, 9, 8), growing=True, if_exists="overwrite").close()
    content = np.arange(3 * 9 * 8.0).reshape(3, 9, 8)
    with oc.open_array(embedded / "steps", "r+") as u:
        u.append(np.zeros((3, 9, 8)))

    def job(comm: ThreadComm) -> oc.CollectiveReport:
        with oc.open_array(embedded / "steps", "r+") as u:
            report = u.write_all(content[:, :, comm.rank :: 2], "*,*,cyclic", comm, timeout=60)
            assert (u.read_all(None, "*,*,*", None) == content).all()
            comm.barrier()
            return report

    reports = whole(ThreadJob(2).run(job))
    plan = oc.plan(
        "write_all", array=embedded / "steps", schema="*,*,cyclic", processes=2, rates=RATES
    )
    assert [report.messages for report in reports] == list(plan.messages)
    with oc.open_array(embedded / "steps") as u:
        assert u.metadata.grid().shards == 3
        assert (u[...] == content).all()


def test_what_no_box_covers_stays(embedded: oc.Pool) -> None:
    with oc.create_array(embedded / "s", (20, 30), chunks=(6, 7), if_exists="overwrite") as u:
        u[...] = 5
        box = (slice(3, 11), slice(2, 29))
        u.write_all([np.full((8, 27), 7.0)], oc.Schema.boxes([[box]]))
        expected = np.full((20, 30), 5.0)
        expected[box] = 7
        assert (u[...] == expected).all()
        (found,) = u.read_all(None, oc.Schema.boxes([[box]]))
        assert (found == 7).all()


def test_each_process_names_its_own_boxes(pool: oc.Pool) -> None:
    """One box, two boxes with one empty, and none."""
    content = np.arange(20 * 30.0).reshape(20, 30)
    oc.create_array(pool / "own", (20, 30), chunks=(6, 7), if_exists="overwrite").close()
    of_rank: list[list[Any]] = [
        [(slice(0, 12), slice(0, 30))],
        [(slice(12, 20), slice(0, None)), (slice(4, 4), slice(3, 9))],
        [],
    ]

    def job(comm: ThreadComm) -> None:
        boxes = of_rank[comm.rank]
        schema = oc.Schema.own_boxes(boxes, comm)
        with oc.open_array(pool / "own", "r+") as u:
            u.write_all([content[box] for box in boxes], schema, comm, timeout=60)
            back = u.read_all(None, schema, comm, timeout=60)
        assert [each.shape for each in back] == [content[box].shape for box in boxes]
        for each, box in zip(back, boxes, strict=True):
            assert (each == content[box]).all()

    whole(ThreadJob(3).run(job))
    with oc.open_array(pool / "own") as u:
        assert (u[...] == content).all()


def test_more_servers_than_chunks_and_zarr_reads_it(embedded: oc.Pool) -> None:
    content = np.arange(12.0).reshape(3, 4)
    with oc.create_array(embedded / "z", (3, 4), chunks=(3, 4), if_exists="overwrite") as u:
        u.write_all(content, "*,*")
        assert (u.read_all(None, "*,*") == content).all()
    found = zarr.open_array(PoolStore(embedded / "z", read_only=True), mode="r")
    assert (np.asarray(found[...]) == content).all()


def test_two_at_once_on_different_arrays(pool: oc.Pool) -> None:
    for name in "ab":
        oc.create_array(pool / name, (64, 64), chunks=(8, 64), if_exists="overwrite").close()

    def one(name: str, value: float) -> Any:
        def job(comm: ThreadComm) -> None:
            for _ in range(3):
                with oc.open_array(pool / name, "r+") as u:
                    mine = np.full((32, 64), value + comm.rank)
                    u.write_all(mine, "block,*", comm, timeout=60)

        return ThreadJob(2).run(job)

    found = ThreadJob(2).run(lambda comm: whole(one("ab"[comm.rank], 10.0 * comm.rank)))
    whole(found)
    for number, name in enumerate("ab"):
        with oc.open_array(pool / name) as u:
            assert (u[...] == 10 * number + np.arange(64)[:, None] // 32).all()


def test_without_disks_nothing_is_written(embedded: oc.Pool) -> None:
    with oc.create_array(embedded / "n", (40, 40), chunks=(9, 9), if_exists="overwrite") as u:
        u[...] = 3
        report = u.write_all(np.zeros((40, 40)), "*,*", skip_disk=True)
        assert report.bytes_moved == 40 * 40 * 8
        u.read_all(None, "*,*", skip_disk=True)
        assert (u[...] == 3).all()
        assert u.info().state == "whole"


def test_atomic_writes_replace_all_at_the_end(pool: oc.Pool) -> None:
    oc.create_array(pool / "t", (30, 30), chunks=(7, 7), if_exists="overwrite").close()

    def job(comm: ThreadComm, value: float, *, fails: bool = False) -> None:
        with oc.open_array(pool / "t", "r+") as u:
            mine = np.full((15, 30), value, "f4" if fails and comm.rank else "f8")
            u.write_all(mine, "block,*", comm, timeout=60, atomic=True)
            assert (u[...] == value).all()

    whole(ThreadJob(2).run(lambda comm: job(comm, 1.0)))
    failed = ThreadJob(2).run(lambda comm: job(comm, 2.0, fails=True))
    assert all(isinstance(each, InvalidError) for each in failed), failed
    with oc.open_array(pool / "t") as u:
        assert (u[...] == 1).all()
    assert not atomic_write.left(place(pool / "t"))


def test_an_atomic_write_of_a_part_is_refused_by_all(pool: oc.Pool) -> None:
    with oc.create_array(pool / "t", (30, 30), chunks=(7, 7), if_exists="overwrite") as t:
        t[...] = 5

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "t", "r+") as u:
            boxes = [[(slice(0, 10), slice(0, 30))], [(slice(10, 30), slice(1, 30))]]
            mine = np.ones((10, 30)) if comm.rank == 0 else np.ones((20, 29))
            u.write_all([mine], oc.Schema.boxes(boxes), comm, timeout=60, atomic=True)

    for failed in ThreadJob(2).run(job):
        assert isinstance(failed, InvalidError)
        assert "have 880" in str(failed)
    with oc.open_array(pool / "t") as u:
        assert (u[...] == 5).all()
    assert not atomic_write.left(place(pool / "t"))


def test_what_cannot_be_done_is_refused(embedded: oc.Pool, tmp_path: Any) -> None:
    plain = oc.create_array(tmp_path / "plain", (4, 4))
    with pytest.raises(InvalidError, match=r"needs an array in a pool.*Pool\.embedded"):
        plain.write_all(np.zeros((4, 4)), "*,*")
    u = oc.create_array(embedded / "r", (4, 4), if_exists="overwrite")
    ok = np.zeros((4, 4))
    frozen = np.zeros((4, 4))
    frozen.flags.writeable = False
    for call, message in [
        (lambda: u.write_all(np.zeros((4, 5)), "*,*"), r"have \[\(4, 5\)\]"),
        (lambda: u.write_all(ok.astype("f4"), "*,*"), "float32, need float64"),
        (lambda: u.write_all(None, "*,*"), "but gives none"),
        (lambda: u.write_all([[1.0]], "*,*"), "have"),
        (lambda: u.read_all(frozen, "*,*"), "read-only"),
        (lambda: u.write_all(ok, "block,block"), "mesh"),
        (lambda: u.write_all(ok, oc.Schema("block,*", mesh=2)), "have 1"),
        (lambda: u.write_all(ok, "block"), "2 dimensions"),
        (lambda: u.write_all([ok], oc.Schema.boxes([[(slice(0, 5), slice(0, 4))]])), "not in an"),
        (lambda: u.write_all([ok], oc.Schema.boxes([[(0, 1)]])), "slices"),
        (lambda: u.write_all([], oc.Schema.boxes([[], []])), "those of 2"),
    ]:
        with pytest.raises(InvalidError, match=message):
            call()
    with pytest.raises(BudgetError, match="raise memory="):
        u.write_all(ok, "*,*", memory=1000)
    assert u.info().state == "whole", "what is refused does no harm"
    u.mark("incomplete", "a test")
    with oc.open_array(embedded / "r", "r+", allow_incomplete=True) as again:
        again.write_all([np.ones((2, 4))], oc.Schema.boxes([[(slice(0, 2), slice(0, 4))]]))
        assert again.info().state == "incomplete", "not all of it is new"
        again.write_all(ok, "*,*")
    with oc.open_array(embedded / "r") as reader:
        assert (reader[...] == 0).all()
        with pytest.raises(ReadOnlyError):
            reader.write_all(ok, "*,*")
    u.close()
    with pytest.raises(OutcoreError, match="was closed"):
        u.write_all(ok, "*,*")
