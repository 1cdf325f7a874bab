"""One rank calls with other or wrong arguments: every rank gets an error, and none waits."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served_pools import above, some_pool

import outcore as oc
from outcore.collective import call as collective_call
from outcore.errors import ClosedError, DiskFullError, InvalidError, OutcoreError

__all__ = ["above"]  # a fixture

SPECS = {"u": oc.ArraySpec((8, 6)), "v": oc.ArraySpec((4,), dims=("x",))}
SCHEMAS = {"u": oc.Schema("block,*"), "v": oc.Schema("block")}


# Only a rank whose partner never comes waits for as long as this, or for the time of a barrier.
TIMEOUT_S = 600


def local(rank: int) -> dict[str, Any]:
    return {"u": np.full((4, 6), float(rank)), "v": np.full(2, float(rank))}


def assert_told(found: list[Any], message: str) -> None:
    """Check that each rank raised an error of outcore, not a broken barrier."""
    for each in found:
        assert isinstance(each, OutcoreError), found
        with pytest.raises(OutcoreError, match=message):
            raise each


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout": math.nan}, "timeout is seconds from 0 to"),
        ({"timeout": math.inf}, "timeout is seconds from 0 to"),
        ({"timeout": -1}, "timeout is seconds from 0 to"),
        ({"timeout": "600"}, "timeout is seconds from 0 to"),
        ({"timeout": 601}, "do not agree on the timeout: "),
        ({"memory": "much"}, "cannot read 'much' as a size"),
        ({"memory": "1 KiB"}, "need 1048576 bytes of memory"),
        ({"atomic": True}, "do not agree on atomic="),
        ({"skip_disk": True}, "do not agree on (skip_disk=|whether disks are used)"),
    ],
)
def test_options_of_a_collective(wrong: dict[str, Any], message: str, at: int) -> None:
    with some_pool("embedded") as pool:
        oc.create_array(pool / "u", (8, 6)).close()

        def work(comm: ThreadComm) -> None:
            with oc.open_array(pool / "u", "r+") as u:
                options = {"timeout": TIMEOUT_S} | (wrong if comm.rank == at else {})
                u.write_all(local(comm.rank)["u"], "block,*", comm, **options)

        assert_told(ThreadJob(2).run(work), message)
        with oc.open_array(pool / "u") as u:
            assert not u[...].any(), "nothing was written"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("verb", ["write_all", "read_all"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("way", ["embedded", "served", "connect"])
def test_arrays_in_different_pools(
    way: str, at: int, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks with the same array get the error too, long before the timeout."""
    kind = "embedded" if way == "embedded" else "served"
    with some_pool(kind) as pool, some_pool(kind) as other:
        for each in (pool, other):
            oc.create_array(each / "u", (8, 6)).close()
        if way == "connect":
            monkeypatch.setattr(collective_call, "open_root", lambda url: None)
            monkeypatch.setattr(
                collective_call, "connect", lambda url, key: oc.connect(url, key=keys[url])
            )
            keys = {each.url: (each / "u").root.key for each in (pool, other)}

        def work(comm: ThreadComm) -> None:
            where = other if comm.rank == at else pool
            with oc.open_array(where / "u", "r+") as u:
                mine = np.full((3 - comm.rank // 2, 6), 1.0)
                getattr(u, verb)(mine, "block,*", comm, timeout=TIMEOUT_S)

        assert_told(ThreadJob(3).run(work), "in another pool than")
        for each in (pool, other):
            with oc.open_array(each / "u") as u:
                assert not u[...].any(), "nothing was written"


def test_a_plain_array_on_one_of_the_ranks(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "u", (8, 6)).close()
    with some_pool("embedded") as pool:
        oc.create_array(pool / "u", (8, 6)).close()

        def work(comm: ThreadComm) -> None:
            with oc.open_array((tmp_path if comm.rank else pool) / "u", "r+") as u:
                u.write_all(local(comm.rank)["u"], "block,*", comm, timeout=TIMEOUT_S)

        assert_told(ThreadJob(2).run(work), "needs an array in a pool")


def test_schemas_that_are_written_otherwise_are_the_same() -> None:
    ways: list[Any] = [(2,), [2], np.array([2]), np.int64(2)]
    cut = np.arange(0, 9, 2)
    boxes = oc.Schema.boxes([[(slice(a, b), slice(0, 6))] for a, b in pairwise(cut)])
    with some_pool("embedded") as pool:
        oc.create_array(pool / "u", (8, 6)).close()

        def work(comm: ThreadComm) -> None:
            with oc.open_array(pool / "u", "r+") as u:
                mine = np.full((4, 6), 7.0) if comm.rank < 2 else None
                u.write_all(mine, oc.Schema("block,*", ways[comm.rank]), comm, timeout=TIMEOUT_S)
                (found,) = u.read_all(None, boxes, comm, timeout=TIMEOUT_S)
                assert found.shape == (2, 6)
                assert (found == 7).all()

        assert ThreadJob(4).run(work) == [None] * 4
    with pytest.raises(InvalidError, match="slices of a box are of integers"):
        oc.Schema.boxes([[(slice(0, 1.5),)]]).on((4,), 1)


Wrong = Callable[[oc.ArrayGroup, int], Any]

CALLS: list[tuple[Wrong, str]] = [
    (lambda group, _: group.timestep(local(1) | {"v": [[1.0, 2.0], [3.0]]}, schema=SCHEMAS),
     r"need an array 'v', or an object that NumPy .*, have a list of a list of 2, a list of 1"),
    (lambda group, _: group.timestep({"u": local(1)["u"]}, schema=SCHEMAS), "need the arrays"),
    (lambda group, _: group.timestep(local(1)["u"], schema=SCHEMAS), "have ndarray"),
    (lambda group, _: group.timestep(local(1), schema=SCHEMAS | {"w": "block"}),
     r"need schemas of the arrays \['u', 'v'\], have \['u', 'v', 'w'\]"),
    (lambda group, _: (group.close(), group.timestep(local(1), schema=SCHEMAS)), "was closed"),
    (lambda group, _: group.checkpoint(local(1), schema=SCHEMAS), "need the same call on every"),
    (lambda group, _: group.restart(schema=SCHEMAS), "need the same call on every rank"),
]  # fmt: skip


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("wrong", "message"), CALLS)
def test_time_steps(above: Any, wrong: Wrong, message: str, at: int) -> None:
    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(above / "run", SPECS, comm=comm)
        if comm.rank == at:
            wrong(group, comm.rank)
        else:
            group.timestep(local(comm.rank), schema=SCHEMAS)

    assert_told(ThreadJob(2).run(work), message)
    assert oc.ArrayGroup(above / "run").steps == 0


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attributes": {"x": object()}}, "JSON"),
        ({"attributes": 5}, "attributes are a dictionary by their names, have int"),
        ({"background": True, "memory": "1 KiB"}, "need the same call|need [0-9]+ bytes"),
    ],
)
def test_checkpoints(tmp_path: Path, wrong: dict[str, Any], message: str, at: int) -> None:
    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(tmp_path / "run", SPECS, comm=comm)
        options = wrong if comm.rank == at else {}
        group.checkpoint(local(comm.rank), schema=SCHEMAS, **options)

    assert_told(ThreadJob(2).run(work), message)
    assert oc.ArrayGroup(tmp_path / "run").checkpoints() == []


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0}, "keep must be an integer"),
        ({"arrays": {"u": 5}}, "need an oc.ArraySpec for 'u', have int"),
        ({"arrays": {"u": SPECS["u"]}}, "has the arrays"),
        ({"time": "t"}, "along"),
        ({"time": "a/b"}, "cannot be named 'a/b'"),
        ({"attributes": {"x": object()}}, "JSON"),
        ({"path": 5}, "is not a path"),
    ],
)
def test_groups(tmp_path: Path, wrong: dict[str, Any], message: str, at: int) -> None:
    def work(comm: ThreadComm) -> None:
        of = {"path": tmp_path / "run", "arrays": SPECS} | (wrong if comm.rank == at else {})
        oc.ArrayGroup(comm=comm, **of)

    assert_told(ThreadJob(2).run(work), message)


def test_a_background_checkpoint_that_failed_is_told_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank gets the error even if its own thread still runs at the next step."""

    def full(*_: Any) -> None:
        raise DiskFullError("no room")

    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(tmp_path / "run", SPECS, comm=comm)
        monkeypatch.setattr("outcore.series.checkpoints._publish", full)
        handle = group.checkpoint(local(comm.rank), schema=SCHEMAS, background=True)
        if comm.rank == 0:
            while not handle.done():
                pass
        else:
            monkeypatch.setattr(handle, "done", lambda: False)
        group.timestep(local(comm.rank), schema=SCHEMAS)

    assert_told(ThreadJob(2).run(work, can_duplicate=True), "no room")


def test_a_group_alone(tmp_path: Path) -> None:
    """A mistake in a group of one process raises a clear error, not an internal traceback."""
    group = oc.ArrayGroup(tmp_path / "run", {"u": oc.ArraySpec(np.int64(6))})
    for wrong, message in [
        (
            [np.zeros(3), np.zeros(2)],
            r"a list of shape \(3,\), shape \(2,\); give one array",
        ),
        (np.zeros(5), "need 'u' of shape"),
    ]:
        with pytest.raises(InvalidError, match=message):
            group.timestep({"u": wrong})
    with pytest.raises(InvalidError, match="time must be a number"):
        group.timestep({"u": np.zeros(6)}, 10**400)
    for spec, message in [
        ({"u": oc.ArraySpec(5.0)}, "a shape is integers"),  # type: ignore[arg-type]
        ({"\udc80": oc.ArraySpec(5)}, "cannot be named"),
        (["u"], "by their names, have list"),
    ]:
        with pytest.raises(InvalidError, match=message):
            oc.ArrayGroup(tmp_path / "other", spec)  # type: ignore[arg-type]
    group.close()
    with pytest.raises(ClosedError):
        group.restart()
