"""A step of many arrays by several ranks: few agreements, and a fixed number of messages each."""

import functools
import threading
from typing import Any, Literal

import numpy as np
import pytest
from communicators import PATIENCE_S, ThreadComm, ThreadJob
from served_pools import some_pool
from test_collective import whole

import outcore as oc
from outcore._util.at_once import at_once, entered_at_once
from outcore.array_files import growing
from outcore.collective import several
from outcore.collective.call import Call
from outcore.collective.interleaved import is_interleaved, packed
from outcore.collective.several import AGREED, AT_ONCE
from outcore.errors import DiskError, DiskFullError, OutcoreError
from outcore.storage import rights
from outcore.storage.volumes import Place

RANKS, ROWS = 3, 12

SERVERS = 2

# Messages to the I/O servers for one array of a step. The length and the bytes of `zarr.json`;
# later a write and a sync of a new one, and the removal of the old one.
METADATA = 2 + 2 + 1
# Free space, lengths and syncs on all servers, and the index.
NEW_FILE = 3 * SERVERS + 1
# Each rank joins and ends at each server, and moves its share of the only chunk.
COLLECTIVE = RANKS * (2 * SERVERS + 2)
EACH = METADATA + NEW_FILE + COLLECTIVE


class CountingComm(ThreadComm):
    """A rank that counts its broadcasts."""

    def __init__(self, comm: ThreadComm) -> None:
        super().__init__(comm.rank, comm._shared)
        self.count = 0

    def bcast(self, value: Any, root: int = 0) -> Any:
        self.count += 1
        return super().bcast(value, root)


def names(count: int) -> list[str]:
    return [f"u{number}" for number in range(count)]


def part(rank: int, number: int) -> Any:
    return np.arange(ROWS // RANKS * 5.0).reshape(-1, 5) + 100 * rank + 1000 * number


def steps(pool: oc.Pool, count: int) -> tuple[int, int]:
    """Append two steps of some arrays; return broadcasts of a rank, and messages of all ranks."""

    def work(comm: ThreadComm) -> Any:
        counting = CountingComm(comm)
        specs = {name: oc.ArraySpec((ROWS, 5)) for name in names(count)}
        with oc.ArrayGroup(pool / f"of{count}", specs, comm=counting) as group:
            for step in range(2):
                local = {n: part(comm.rank, i + step) for i, n in enumerate(names(count))}
                comm.barrier()
                before, messages = counting.count, pool.messages
                assert group.timestep(local, schema="block,*") == step
                comm.barrier()
                found = counting.count - before, pool.messages - messages
        return found

    ((broadcasts, messages), *others) = whole(ThreadJob(RANKS).run(work))
    assert {each[0] for each in others} == {broadcasts}
    for number, name in enumerate(names(count)):
        with oc.open_array(pool / f"of{count}" / name) as array:
            for step in range(2):
                expected = np.concatenate([part(rank, number + step) for rank in range(RANKS)])
                np.testing.assert_array_equal(array[step], expected)
    return broadcasts, messages


@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_ranks_agree_once_on_a_step_of_many_arrays(kind: str) -> None:
    with some_pool(kind) as pool:
        (few, some), (many, more), (most, all_of) = (steps(pool, count) for count in (1, 4, AGREED))
        assert few == many == most
        assert [more - some, all_of - more] == [3 * EACH, (AGREED - 4) * EACH]


def test_the_files_of_a_new_group_are_made_without_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request for the state of a name that cannot exist is one to the manager."""
    asked: list[str] = []

    def note(owner: Any, name: str) -> None:
        ask = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: asked.append(name) or ask(*given))

    with some_pool("embedded") as pool:
        for owner, name in ((Place, "exists"), (Place, "names"), (rights, "rights_of")):
            note(owner, name)
        counts = []
        for count in (1, 4, 7):
            asked.clear()
            oc.ArrayGroup(pool / f"of{count}", dict.fromkeys(names(count), oc.ArraySpec((2, 2))))
            counts.append(len(asked))
        assert counts[0] == counts[1] == counts[2] > 0


def write_after_an_error(
    group: oc.ArrayGroup, local: dict[str, Any], comm: ThreadComm, fails: list[bool]
) -> None:
    """The group stayed as it was; all ranks write the step when nothing fails any more."""
    assert group.steps == 0
    comm.barrier()
    fails.clear()
    comm.barrier()
    assert group.timestep(local, schema="block,*") == 0


def test_an_error_of_one_array_ends_the_step_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank waits for the arrays that another has not begun, and the group stays as it was."""
    go_on, fails = Call._open, [True]

    def fail(self: Any, core: Any) -> None:
        if fails and self._comm.rank == 1 and "u3" in str(self._array.path):
            raise DiskError("too many open files")
        go_on(self, core)

    def work(comm: ThreadComm) -> None:
        specs = {name: oc.ArraySpec((ROWS, 5)) for name in names(9)}
        with oc.ArrayGroup(pool / "run", specs, comm=comm) as group:
            local = {name: part(comm.rank, i) for i, name in enumerate(names(9))}
            with pytest.raises(OutcoreError, match="too many open files"):
                group.timestep(local, schema="block,*")
            write_after_an_error(group, local, comm, fails)

    monkeypatch.setattr(Call, "_open", fail)
    with some_pool("unix") as pool:
        whole(ThreadJob(RANKS).run(work))
        kept = {"c", "outcore.generation", "outcore.group", "zarr.json"}
        assert {path.name for path in (pool / "run/u0").iterdir()} == kept


def test_files_are_made_while_others_are_in_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the smallest array is made last: the test waits for a transfer before that."""
    exchange, make = Call.exchange, growing.begin_file
    is_under_way, made = threading.Event(), list[str]()

    def note(self: Any, local: Any) -> Any:
        is_under_way.set()
        return exchange(self, local)

    def wait(begun: Place, metadata: Any, *, reserve: bool) -> None:
        made.append(begun.path.parent.name)
        assert made[-1] != "small" or is_under_way.wait(PATIENCE_S)
        if made[-1] == "full":
            raise DiskFullError("no room")
        make(begun, metadata, reserve=reserve)

    def work(comm: ThreadComm, other: str) -> None:
        shapes = {other: (ROWS, 1), "small": (ROWS, 2)} | dict.fromkeys(names(AGREED), (ROWS, 5))
        specs = {name: oc.ArraySpec(shape) for name, shape in shapes.items()}
        local = {n: np.full((ROWS // RANKS, s[1]), comm.rank + 1.0) for n, s in shapes.items()}
        with oc.ArrayGroup(pool / other, specs, comm=comm) as group:
            if other == "full":
                with pytest.raises(DiskFullError, match="no room"):
                    group.timestep(local, schema="block,*")
                assert group.steps == 0
            else:
                group.timestep(local, schema="block,*")

    monkeypatch.setattr(Call, "exchange", note)
    monkeypatch.setattr(growing, "begin_file", wait)
    with some_pool("unix") as pool:
        for other in ("fits", "full"):
            is_under_way.clear()
            made.clear()
            whole(ThreadJob(RANKS).run(functools.partial(work, other=other)))
            assert set(made[AGREED:]) == {"small", other}
        kept = {"outcore.generation", "outcore.group", "zarr.json"}
        assert {path.name for path in (pool / "full/u0").iterdir()} == kept
        with oc.open_array(pool / "fits/small") as array:
            np.testing.assert_array_equal(array[0], np.repeat([1.0, 2, 3], 4)[:, None] * [1, 1])


def test_arrays_that_interleave_are_packed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a rank is cells x variables, and each variable an array."""
    count = 2 * AT_ONCE + 3
    rank_of: dict[int, int] = {}
    packings, waits = ([list[int]() for _ in range(RANKS)] for _ in range(2))
    pack, wait = several.packed, several.wait

    def note(local: Any) -> Any:
        packings[rank_of[threading.get_ident()]].append(len(local))
        return pack(local)

    def note_wait(begun: Any) -> Any:
        waits[rank_of[threading.get_ident()]].append(len(begun))
        return wait(begun)

    def cells_of(rank: int) -> Any:
        return np.random.default_rng(rank).random((6, 5, count + 1))

    def work(comm: ThreadComm) -> None:
        rank_of[threading.get_ident()] = comm.rank
        cells = cells_of(comm.rank)
        specs = {name: oc.ArraySpec((RANKS * 4, 5)) for name in names(count)}
        local = {name: cells[1:-1, ::-1, i] for i, name in enumerate(names(count))}
        with oc.ArrayGroup(pool / "run", specs, comm=comm) as group:
            group.timestep(local, schema="block,*")

    monkeypatch.setattr(several, "packed", note)
    monkeypatch.setattr(several, "wait", note_wait)
    with some_pool("unix") as pool:
        whole(ThreadJob(RANKS).run(work))
        assert packings == [[AT_ONCE, AT_ONCE, 3]] * RANKS
        # Copies of two groups are in memory at most.
        assert waits == [[0, 0, AT_ONCE]] * RANKS
        for i, name in enumerate(names(count)):
            with oc.open_array(pool / "run" / name) as array:
                expected = [cells_of(rank)[1:-1, ::-1, i] for rank in range(RANKS)]
                np.testing.assert_array_equal(array[0], np.concatenate(expected))


def test_a_rank_that_cannot_pack_ends_the_step_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes part in the agreements on the other arrays, and nobody waits for its arrays."""
    pack, fails = several.packed, [True]
    rank_of: dict[int, int] = {}

    def fail(local: Any) -> Any:
        if fails and rank_of[threading.get_ident()] == 1:
            raise MemoryError("no memory for a copy")
        return pack(local)

    def work(comm: ThreadComm) -> None:
        rank_of[threading.get_ident()] = comm.rank
        every = names(2 * AGREED + 1)
        cells = np.full((4, 5, len(every)), comm.rank + 1.0)
        with oc.ArrayGroup(
            pool / "run", {name: oc.ArraySpec((ROWS, 5)) for name in every}, comm=comm
        ) as group:
            local = {name: cells[..., i] for i, name in enumerate(every)}
            with pytest.raises((MemoryError, OutcoreError), match="no memory for a copy"):
                group.timestep(local, schema="block,*")
            write_after_an_error(group, local, comm, fails)

    monkeypatch.setattr(several, "packed", fail)
    with some_pool("unix") as pool:
        whole(ThreadJob(RANKS).run(work))
        with oc.open_array(pool / "run/u3") as array:
            np.testing.assert_array_equal(array[0][:, 0], np.repeat([1.0, 2, 3], 4))


@pytest.mark.parametrize("order", ["C", "F"])
def test_only_arrays_that_interleave_are_packed(order: Literal["C", "F"]) -> None:
    memory = np.random.default_rng(5).random((7, 6, 5, 4)).copy(order)
    axis = 3 if order == "C" else 0
    views = list(np.moveaxis(memory, axis, 0))
    own = [[view] for view in views[:2]]
    assert is_interleaved(own, 2 * views[0].nbytes)
    assert not is_interleaved(own, 2 * views[0].nbytes - 1)
    for found, view in zip(packed(own), views, strict=False):
        assert isinstance(found, list)
        assert found[0].flags[f"{order}_CONTIGUOUS"]
        np.testing.assert_array_equal(found[0], view)
    (alone, *_), others = views, list(np.moveaxis(memory, 3 - axis, 0))
    for parts in (
        [alone], [alone, alone], [alone, alone.copy()], [alone, None], [None, alone], others,
        [alone[:0], views[1][:0]], [alone[:2], views[1]], [[alone, alone], [views[1], views[1]]],
        [alone.view("i8"), views[1]], [np.ma.masked_array(one) for one in views],
        [alone[0, 0, 0], views[1][0, 0, 0]],
    ):  # fmt: skip
        assert not is_interleaved(parts, 1 << 20)


def test_calls_at_once_end_before_an_error_is_raised() -> None:
    ended: list[int] = []
    both = threading.Barrier(2)

    def call(number: int) -> int:
        if number < 2:
            both.wait()
        if number == 0:
            raise ValueError("the first")
        ended.append(number)
        return 10 * number

    with pytest.raises(ValueError, match="the first"):
        at_once(call, range(100), most=2)
    assert 1 in ended
    assert at_once(call, [5, 3, 4]) == [50, 30, 40]
    assert at_once(call, []) == []


def test_contexts_at_once_are_left_whatever_happens() -> None:
    entered, left = set(), set()

    class Context:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            if self.number == 7:
                raise ValueError("no seventh")
            entered.add(self.number)

        def __exit__(self, *_: object) -> None:
            left.add(self.number)
            if self.number == 2:
                raise ValueError("the second again")

    for numbers, error in (([1, 2, 3], "the second again"), (range(9), "no seventh|second again")):
        entered.clear()
        left.clear()
        with pytest.raises(ValueError, match=error), entered_at_once(map(Context, numbers)):
            pass
        assert left == entered
