"""A simulated power loss: noted and flushed data survive, whatever else is lost."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from linpack import on_disk, one_thread, random_matrix
from power_loss import Machine
from stopping import bits

import outcore as oc
from outcore.linalg import lu_factor, open_factor
from outcore.linalg._output.journal import read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY = 200, 200_000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "machine").mkdir()
    (tmp_path / "disk").mkdir()
    return Machine(tmp_path / "machine", tmp_path / "disk")


def test_what_is_not_synced_is_lost(machine: Machine) -> None:
    """Test the simulated machine itself, with plain files."""
    file = machine.root / "f"
    script = """
import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(f, b"a" * 2000)
os.fdatasync(f)
os.pwrite(f, b"b" * 3000, 1000)
os.pwrite(f, b"c" * 100, 1500)
"""
    assert machine.run(script, str(file)) == 8
    whole = b"a" * 1000 + b"b" * 500 + b"c" * 100 + b"b" * 2400
    assert file.read_bytes() == whole
    draws = {draw: random.Random(draw) for draw in range(20)}
    found = set()
    for draw in draws.values():
        machine.lose(draw)
        found.add(file.read_bytes())
        assert file.read_bytes()[:1000] == b"a" * 1000
        file.write_bytes(whole)
    assert len(found) > 10
    assert machine.lose() == 2
    assert file.read_bytes() == b"a" * 2000


def test_a_flushed_array_survives(machine: Machine) -> None:
    """A power loss keeps all writes before `flush`, and drops those after it."""
    script = """
import os, sys
import numpy as np
import outcore as oc
A = oc.create_array(sys.argv[1], (500, 300), "f8", chunks=(64, 300))
A[...] = np.arange(150_000.0).reshape(500, 300)
A.flush()
A[100:300] = -1
"""
    path = machine.root / "A"
    machine.run(script, str(path))
    assert machine.lose() > 0
    with oc.open_array(path) as A:
        np.testing.assert_array_equal(A[...], np.arange(150_000.0).reshape(500, 300))


FACTOR = f"""
import sys
from outcore.linalg import lu_factor
overwrite_a = sys.argv[2] == "True"
lu_factor(sys.argv[1], overwrite_a=overwrite_a, memory={MEMORY}, threads=1, progress=False)
"""


@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
def test_lu_goes_on_after_a_power_loss(machine: Machine, overwrite_a: bool) -> None:
    """LU writes a slab, syncs it, then notes it: data that the journal names are durable.

    LU removes the journal when the factors are whole and durable.
    """
    source, path = machine.root / "A", machine.root / "Z"
    out = machine.root / "Z.lu"
    on_disk(source, random_matrix(N, "f8"), (64, 32)).close()
    shutil.copytree(source, path)
    arguments = str(path), str(overwrite_a)
    count = machine.run(FACTOR, *arguments)
    expected = bits(lu_factor(source, memory=MEMORY, threads=1, progress=False))
    notes = [n for n, name in machine.synced if name == str(out / "journal")]
    assert len(notes) == 7

    draw = random.Random(0)
    cuts = [notes[1], notes[4], count + 100, *(draw.randrange(notes[1], count) for _ in range(3))]
    for until in cuts:
        for name in ("Z", "Z.lu"):
            shutil.rmtree(machine.root / name, ignore_errors=True)
        shutil.copytree(source, path)
        machine.run(FACTOR, *arguments, until=until)
        noted = sum(name == str(out / "journal") for _, name in machine.synced)
        machine.lose(draw if until not in notes else None)
        journal = read_journal(place(out))
        if journal is None:
            lu = open_factor(out)
        else:
            assert len(journal.records) >= noted
            lu = lu_factor(path, overwrite_a=overwrite_a, memory=MEMORY, threads=1, progress=False)
        for have, want in zip(bits(lu), expected, strict=True):
            np.testing.assert_array_equal(have, want, err_msg=f"{until} of {count}")


SAVE = """
import sys
import numpy as np
import outcore as oc
specs = {"u": oc.ArraySpec((40, 60), "f4", chunks=(30, 40)), "v": oc.ArraySpec(900)}
with oc.ArrayGroup(sys.argv[1] + "/run", specs) as group:
    for number in range(4):
        state = {"u": np.full((40, 60), number, "f4"), "v": np.arange(900.0) * number}
        if number % 2:
            group.checkpoint(state, {"number": number}, background=True).wait()
        else:
            group.checkpoint(state, {"number": number}, progress=False)
        open(f"{sys.argv[1]}/done{number}", "w").close()
"""


def test_checkpoints_are_whole_after_a_power_loss(machine: Machine, all_lines: bool) -> None:
    """A restart loads a whole checkpoint, never one older than the last that was reported done."""
    count = machine.run(SAVE, str(machine.root))
    draw = random.Random(3)
    for turn in range(10 if all_lines else 4):
        for left in machine.root.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        machine.run(SAVE, str(machine.root), until=draw.randrange(count // 8, count))
        done = len(list(machine.root.glob("done*")))
        machine.lose(draw if turn % 2 else None)
        with oc.ArrayGroup(machine.root / "run") as group:
            try:
                found = group.restart(progress=False)
            except oc.errors.NotFoundError:
                assert done == 0
                continue
        number = found.attributes["number"]
        assert number == found.number
        assert done - 1 <= number <= done
        assert found.damaged == {}
        assert (found["u"] == number).all()
        assert (found["v"] == np.arange(900.0) * number).all()
