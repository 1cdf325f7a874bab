"""Groups of arrays whose ranks name their boxes; background checkpoints of several ranks."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from communicators import ThreadComm, ThreadJob
from served_pools import above
from strategies import values
from test_collective import whole

import outcore as oc
from outcore.errors import InvalidError

__all__ = ["above"]  # a fixture

SPECS = {
    "u": oc.ArraySpec((12, 10), "f4", chunks=(5, 4)),
    "v": oc.ArraySpec((30,), "i8", chunks=7),
}
Boxes = dict[str, list[list[Any]]]

THREE: Boxes = {
    "u": [
        [(slice(0, 5), slice(0, 10)), (slice(5, 12), slice(7, 10))],
        [],
        [(slice(5, 12), slice(0, 7))],
    ],
    "v": [[], [(slice(0, 11),)], [(slice(11, 20),), (slice(20, 30),)]],
}
"""One rank has two boxes and one has none; these ranks differ between the arrays."""

TWO: Boxes = {
    "u": [[(slice(3, 12), slice(0, 10))], [(slice(0, 3), slice(0, 10))]],
    "v": [[(slice(29, 30),), (slice(0, 29),)], []],
}


def state(number: int) -> dict[str, npt.NDArray[Any]]:
    return {"u": values((12, 10), "f4", number), "v": values((30,), "i8", number + 100)}


def schema(boxes: Boxes) -> dict[str, oc.Schema]:
    return {name: oc.Schema.boxes(each) for name, each in boxes.items()}


def own(boxes: Boxes, rank: int, number: int) -> dict[str, list[npt.NDArray[Any]]]:
    """Return the boxes of a rank: views that share no memory."""
    of = state(number)
    return {name: [of[name][box] for box in each[rank]] for name, each in boxes.items()}


def assert_own(found: Any, boxes: Boxes, rank: int, number: int) -> None:
    for name, expected in own(boxes, rank, number).items():
        assert len(found[name]) == len(expected)
        for have, need in zip(found[name], expected, strict=True):
            np.testing.assert_array_equal(have, need)


def test_steps_and_checkpoints_of_boxes(above: Any) -> None:
    def write(comm: ThreadComm) -> None:
        with oc.ArrayGroup(above / "run", SPECS, comm=comm) as group:
            for number in range(2):
                mine = own(THREE, comm.rank, number)
                assert group.timestep(mine, schema=schema(THREE)) == number
                assert group.checkpoint(mine, {"step": number}, schema=schema(THREE)) == number
            assert_own(group.restart(schema=schema(THREE)), THREE, comm.rank, 1)

    def go_on(comm: ThreadComm) -> None:
        with oc.ArrayGroup(above / "run", comm=comm) as group:
            found = group.restart(schema=schema(TWO))
            assert (found.number, found.attributes) == (1, {"step": 1})
            assert_own(found, TWO, comm.rank, 1)
            mixed = group.restart(schema=schema(TWO) | {"u": oc.Schema("block,*")})
            np.testing.assert_array_equal(
                mixed["u"], state(1)["u"][6 * comm.rank : 6 * comm.rank + 6]
            )
            group.timestep(own(TWO, comm.rank, 2), schema=schema(TWO))

    whole(ThreadJob(3).run(write))
    whole(ThreadJob(2).run(go_on))
    with oc.ArrayGroup(above / "run") as alone:
        for name, expected in state(1).items():
            np.testing.assert_array_equal(alone.restart()[name], expected)
        for number in range(3):
            for name, expected in state(number).items():
                np.testing.assert_array_equal(alone[name][number], expected)
        one = {
            name: [[box for own_boxes in boxes for box in own_boxes]] for name, boxes in TWO.items()
        }
        assert_own(alone.restart(schema=schema(one)), one, 0, 1)
        assert alone.timestep(own(one, 0, 3), schema=schema(one)) == 3
        np.testing.assert_array_equal(alone["u"][3], state(3)["u"])


def test_ghost_cells_are_read_at_a_restart_and_not_written(above: Any) -> None:
    wider: Boxes = {
        "u": [[(slice(0, 7), slice(0, 10))], [(slice(4, 12), slice(0, 10))]],
        "v": [[(slice(0, 16),), (slice(14, 18),)], [(slice(14, 30),)]],
    }

    def work(comm: ThreadComm) -> None:
        with oc.ArrayGroup(above / "run", SPECS, comm=comm) as group:
            assert group.checkpoint(own(TWO, comm.rank, 0), schema=schema(TWO)) == 0
            with pytest.raises(InvalidError, match="overlap"):
                group.checkpoint(own(wider, comm.rank, 1), schema=schema(wider))
            with pytest.raises(InvalidError, match="overlap"):
                group.timestep(own(wider, comm.rank, 1), schema=schema(wider))
            assert group.checkpoints() == [0]
            assert_own(group.restart(schema=schema(wider)), wider, comm.rank, 0)

    whole(ThreadJob(2).run(work))


def test_what_no_box_has_is_zero(above: Any) -> None:
    box = (slice(2, 4), slice(1, 9))
    with oc.ArrayGroup(above / "run", {"u": SPECS["u"]}) as group:
        group.checkpoint({"u": [np.ones((2, 8), "f4")]}, schema=oc.Schema.boxes([[box]]))
        expected = np.zeros((12, 10), "f4")
        expected[box] = 1
        np.testing.assert_array_equal(group.restart()["u"], expected)


def test_boxes_that_do_not_fit_are_refused_on_all_ranks(above: Any) -> None:
    def work(comm: ThreadComm) -> list[str]:
        told = []
        with oc.ArrayGroup(above / "run", SPECS, comm=comm) as group:
            good = own(THREE, comm.rank, 0)
            for wrong in (
                good | ({"u": np.zeros((12, 10))} if comm.rank == 1 else {}),
                good | ({"v": [np.zeros(3, "i8")]} if comm.rank == 1 else {}),
                good | ({"u": good["u"][:1]} if comm.rank == 0 else {}),
            ):
                with pytest.raises(InvalidError) as raised:
                    group.checkpoint(wrong, schema=schema(THREE))
                told.append(str(raised.value))
            with pytest.raises(InvalidError, match=r"those of 2|of 3 processes"):
                group.checkpoint(good, schema=schema(TWO))
            other = schema(THREE) | ({"u": oc.Schema("block,*")} if comm.rank == 1 else {})
            with pytest.raises(InvalidError, match="schema"):
                group.checkpoint(
                    good | {"u": np.zeros((4, 10), "f4")} if comm.rank == 1 else good, schema=other
                )
            has_none = comm.rank == 0
            with pytest.raises(InvalidError, match="schema"):
                group.checkpoint(
                    state(0) if has_none else good, schema=None if has_none else schema(THREE)
                )
            assert group.checkpoints() == []
            assert group.checkpoint(good, schema=schema(THREE)) == 0
        return told

    for told in whole(ThreadJob(3).run(work)):
        assert "need a list of arrays of 'u'" in told[0]
        assert "(3,)" in told[1]
        assert "[(5, 10)]" in told[2]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("is_boxes", [False, True])
def test_in_the_background_by_several_ranks(above: Any, *, is_boxes: bool) -> None:
    """On plain paths and in both kinds of pools: copies are written while the arrays change."""
    rules: dict[str, Any] = {"u": oc.Schema("*,cyclic(3)"), "v": oc.Schema("block")}
    chosen = schema(THREE) if is_boxes else rules

    def mine(rank: int, number: int) -> dict[str, Any]:
        if is_boxes:
            return own(THREE, rank, number)
        of = state(number)
        columns = [j for j in range(10) if j // 3 % 3 == rank]
        return {"u": of["u"][:, columns], "v": of["v"][10 * rank : 10 * rank + 10].copy()}

    def work(comm: ThreadComm) -> None:
        with oc.ArrayGroup(above / "run", SPECS, comm=comm, keep=2) as group:
            for number in range(3):
                local = mine(comm.rank, number)
                handle = group.checkpoint(
                    local, {"step": number}, schema=chosen, background=True, memory="4 MiB"
                )
                for own_arrays in local.values():
                    for each in own_arrays if is_boxes else [own_arrays]:
                        each[...] = 0
                # A collective of the program runs at the same time.
                assert group.timestep(mine(comm.rank, number), schema=chosen) == number
                if number != 1:
                    assert handle.wait() == number
        assert handle.done()

    def go_on(comm: ThreadComm) -> None:
        with oc.ArrayGroup(above / "run", comm=comm) as group:
            assert group.checkpoints() == [1, 2]
            found = group.restart(schema=schema(TWO))
            assert found.attributes == {"step": 2}
            assert_own(found, TWO, comm.rank, 2)

    whole(ThreadJob(3).run(work, can_duplicate=True))
    whole(ThreadJob(2).run(go_on))
    with oc.ArrayGroup(above / "run") as group:
        for name, expected in state(2).items():
            np.testing.assert_array_equal(group[name][2], expected)
