"""Processes that are killed at one step of an LU after the other, until it ends."""

import json
import sys
from pathlib import Path

import pytest
from mpi_jobs import MPICH, mpi_program
from test_lu_processes import JOB, run

CALL = """
from outcore.linalg._lu.slabs.storage import LuStorage

a = random(300, "f8")
A = f"{home}/A"
if comm.rank == 0 and not Path(A).exists():
    oc.from_array(a, A, order="F", progress=False)
comm.barrier()
same = SAME | {"memory": 300_000}
"""

DIES = """
who, what, least = options["who"], options["what"], options["least"]
holder = LuStorage if hasattr(LuStorage, what) else SlabFactorization
right = getattr(holder, what)

def dies(self, *given):
    # Panels count to the record's last one, and all have been factored when a run ends.
    g = self.geometry if holder is LuStorage else self.g
    at = {"commit_later": lambda record: record.last, "finish": lambda *_: g.panels}
    if at.get(what, lambda K, *_: K)(*given) >= least * g.panels:
        os.kill(os.getpid(), signal.SIGKILL)
    return right(self, *given)

if comm.rank == who:
    setattr(holder, what, dies)
try:
    lu_factor(A, **same)
    said = "no error"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
Path(home, f"{comm.rank}").write_text(said)
os._exit(0)
"""

GOES_ON = """
f = lu_factor(A, **same)
assert "resumed at panel" in f.report.notes[0], f.report.notes
check(f, a)
whole = lu_factor(A, out=f"{home}/whole", **same)
assert files(f.path) == files(whole.path) and (f.piv == whole.piv).all()
assert (f.growth, f.norm1) == (whole.growth, whole.norm1)
"""


def run_with_a_death(tmp_path: Path, who: int, *words: str) -> dict[str, str]:
    """Run a program by three processes, of which one dies; return the texts of the others."""
    others = sorted({"0", "1", "2"} - {str(who)})
    # The launcher knows the shells only: it ends a job in which a process dies.
    shell = f'"$@"; until [ -s "$0/{others[0]}" -a -s "$0/{others[1]}" ]; do sleep 0.05; done'
    done = mpi_program(
        3, "sh", "-c", shell, str(tmp_path), *words, MPI4PY_LIBMPI=str(MPICH.library)
    )
    found = {path.name: path.read_text() for path in tmp_path.glob("?") if path.is_file()}
    assert sorted(found) == others, (found, done.stdout + done.stderr)
    return found


PLACES = [(1, "factor", 0.4), (2, "update", 0.5), (0, "commit_later", 0.8), (1, "finish", 1)]
"""A process, and the step at which it dies, once that is so far in the panels."""

MORE = [
    (rank, step, far + rank / 20)
    for step, far in (("factor", 0.3), ("update", 0.4), ("share", 0.5), ("commit_later", 0.6))
    for rank in range(3)
] + [(rank, "finish", 1) for rank in range(3)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("places", "apart"), [(PLACES, False), (PLACES, True), (MORE, False), (MORE, True)]
)
def test_processes_killed_in_turn(
    tmp_path: Path, places: list[tuple[int, str, float]], apart: bool
) -> None:
    """The others name the one that died, and the last call has the result of a whole one."""
    script, journal, lines = tmp_path / "job.py", tmp_path / "A.lu" / "journal", 0
    script.write_text(JOB + CALL + DIES)
    for who, what, least in places:
        given = json.dumps({"who": who, "what": what, "least": least, "apart": apart})
        found = run_with_a_death(tmp_path, who, sys.executable, str(script), str(tmp_path), given)
        for name, said in found.items():
            assert said.startswith("DiskError: "), (what, found)
            assert f"rank {who} died" in said, (what, found)
            (tmp_path / name).unlink()
        before, lines = lines, len(journal.read_text().splitlines())
        assert lines >= before, (what, lines, before)
    run(tmp_path, 3, CALL + GOES_ON, apart=apart)


FAR = """
from outcore.processes import sharing
from outcore.processes.team import Team

# As on several hosts, where no system tells of the deaths of the others.
sharing.identity = lambda: None
right = getattr(holder := globals()[options["of"]], options["at"])

def dies(self, *given):
    if comm.rank == options["who"] and (isinstance(self, Team) or given[0] > 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return right(self, *given)

setattr(holder, options["at"], dies)
try:
    lu_factor(A, **same | {"timeout": 600})
    said = "no error"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
Path(home, f"{comm.rank}").write_text(said)
os._exit(0)
"""


@pytest.mark.parametrize("who", range(3))
@pytest.mark.parametrize(("of", "at"), [("SlabFactorization", "factor"), ("Team", "__exit__")])
def test_a_process_that_dies_on_another_host_is_named(
    tmp_path: Path, of: str, at: str, who: int
) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + CALL + FAR)
    given = json.dumps({"who": who, "of": of, "at": at})
    found = run_with_a_death(tmp_path, who, sys.executable, str(script), str(tmp_path), given)
    for said in found.values():
        assert said.startswith("DiskError: "), found
        assert f"rank {who} died during the call" in said, found
