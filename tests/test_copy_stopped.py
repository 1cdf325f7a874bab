"""A copy that kill -9, Ctrl-C or SIGTERM stops: the left-overs, and the resumed copy."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from served import Served
from timeouts import HANG_S

import outcore as oc
from outcore.errors import ExistsError
from outcore.files import catalog, copy_job, file_copy, pieces
from outcore.files.copy import copy_files
from outcore.storage.volumes import AnyPath

PIECE = 64 << 10
FILES = {"c/0/0": 9 * PIECE + 5, "c/0/1": 4 * PIECE, "few": 10, "zarr.json": 300}
Start = Callable[..., subprocess.Popen[str]]

# A copy that gets a signal after this many pieces.
SCRIPT = f"""
import os, sys, threading
import outcore as oc
from outcore.files import copy_job, file_copy, pieces
from outcore.files.copy import copy_files
from outcore.storage.file_status import FileStatus

source, target, url, key, number, after, resume = sys.argv[1:]
pieces.PIECE_BYTES = copy_job.PIECE_BYTES = file_copy.PIECE_BYTES = {PIECE}
copy_job._FLUSH_BYTES = 2 * {PIECE}
pieces._WATCH_S = 0.001
move, lock, moved = copy_job._move, threading.Lock(), [0]

def moving(*arguments, **options):
    checksum = move(*arguments, **options)
    with lock:
        moved[0] += 1
        if moved[0] == int(after):
            os.kill(os.getpid(), int(number))
            threading.Event().wait(0.1 if int(number) != 9 else 10)
    return checksum

copy_job._move = moving
with oc.connect(url, key=key) as pool:
    def path(text):
        return pool / text[5:] if text.startswith("pool:") else text
    copy_files(
        path(source), path(target), recursive=True, memory=2 * {PIECE}, resume=resume == "yes"
    )
print(moved[0])
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, copy_job, file_copy):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)


@pytest.fixture
def pool(served: Served) -> Iterator[oc.Pool]:
    with oc.connect(served.url, key=served.key) as opened:
        yield opened


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for seed, (name, nbytes) in enumerate(FILES.items()):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.random.default_rng(seed).bytes(nbytes))
    return tmp_path / "tree"


def same(top: AnyPath, tree: Path) -> bool:
    return all((top / name).read_bytes() == (tree / name).read_bytes() for name in FILES)


def run(
    start: Start, served: Served, source: str, target: str, number: int, after: int,
    resume: str = "no",
) -> tuple[int, str, str]:  # fmt: skip
    process = start(
        SCRIPT, source, target, served.url, str(served.key), str(number), str(after), resume
    )
    said, errors = process.communicate(timeout=HANG_S)
    return process.returncode, said, errors


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("to_pool", [True, False])
@pytest.mark.parametrize("after", [1, 8, 15])
def test_a_killed_copy_goes_on(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path, tmp_path: Path, to_pool: bool,
    after: int,
) -> None:  # fmt: skip
    copy_files(tree, pool / "tree", recursive=True, progress=False)
    source, target = (str(tree), "pool:t") if to_pool else ("pool:tree", str(tmp_path / "t"))
    status, _, _ = run(run_python, served, source, target, signal.SIGKILL, after)
    assert status == -signal.SIGKILL
    place: AnyPath = pool / "t" if to_pool else tmp_path / "t"
    assert not place.exists()
    working = place.with_name(".t.copying")
    entry = catalog.recognise(working)
    assert entry is not None
    assert (entry.kind, entry.state) == ("left-over", "incomplete")
    again: AnyPath = tree if to_pool else pool / "tree"
    with pytest.raises(ExistsError, match="--resume"):
        copy_files(again, place, recursive=True, progress=False)
    (report,) = copy_files(again, place, recursive=True, resume=True, progress=False)
    assert same(place, tree)
    assert not working.exists(), list(working.iterdir())
    if after > 8:
        assert report.resumed_bytes >= 4 * PIECE


@pytest.mark.parametrize("to_pool", [True, False])
def test_what_a_killed_call_was_writing_goes_with_the_rest(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path, tmp_path: Path, to_pool: bool
) -> None:
    """If it is killed while it replaces its journal, it leaves the new one beside the old one."""
    copy_files(tree, pool / "tree", recursive=True, progress=False)
    source, target = (str(tree), "pool:t") if to_pool else ("pool:tree", str(tmp_path / "t"))
    run(run_python, served, source, target, signal.SIGKILL, 8)
    place: AnyPath = pool / "t" if to_pool else tmp_path / "t"
    working = place.with_name(".t.copying")
    (working / ".new").write_bytes(b"half a jour")
    again: AnyPath = tree if to_pool else pool / "tree"
    copy_files(again, place, recursive=True, resume=True, progress=False)
    assert same(place, tree)
    assert not working.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_is_told_to_stop_says_how_to_go_on(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path, number: int
) -> None:
    status, _, errors = run(run_python, served, str(tree), "pool:t", number, 9)
    assert status != 0
    last = errors.strip().splitlines()[-1]
    assert "Interrupted: copying to " in last
    assert "--resume" in last
    assert ".t.copying" in last
    assert pool.ls() == [".t.copying"]
    # All moved pieces were recorded, so only the rest is moved.
    status, said, errors = run(run_python, served, str(tree), "pool:t", number, 99, "yes")
    assert (status, errors) == (0, "")
    assert int(said) <= 17 - 9
    assert same(pool / "t", tree)


def test_stopped_again_and_again_it_comes_to_an_end(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path
) -> None:
    for _ in range(20):
        status, _, _ = run(run_python, served, str(tree), "pool:t", signal.SIGINT, 5, "yes")
        if status == 0:
            break
    assert same(pool / "t", tree)


def test_what_the_journal_says_is_not_believed(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path, tmp_path: Path
) -> None:
    copy_files(tree, pool / "tree", recursive=True, progress=False)
    run(run_python, served, "pool:tree", str(tmp_path / "t"), signal.SIGINT, 15)
    written = tmp_path / ".t.copying/content/c/0/0"
    with written.open("r+b") as file:
        # A torn piece, as after a power cut, and a truncated file.
        file.seek(3 * PIECE + 100)
        file.write(bytes(1000))
        file.truncate(8 * PIECE)
    (tmp_path / ".t.copying/content/not of the source").touch()
    with (tmp_path / ".t.copying/journal").open("ab") as journal:
        journal.write(b'{"file": "few", "pie')
    (tree / "few").write_bytes(b"other")
    with pool.open("tree/few", "w") as file:
        file.write(b"other")
    # Different content of the same length.
    (tree / "c/0/1").write_bytes(bytes(range(256)) * (PIECE // 64))
    with pool.open("tree/c/0/1", "r+") as file:
        file.write((tree / "c/0/1").read_bytes())
    pool._root.core.tell_written()
    copy_files(pool / "tree", tmp_path / "t", recursive=True, resume=True, progress=False)
    assert same(tmp_path / "t", tree)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["c", "few", "zarr.json"]


def test_a_copy_of_something_else_begins_anew(
    run_python: Start, served: Served, pool: oc.Pool, tree: Path, tmp_path: Path
) -> None:
    run(run_python, served, str(tree), "pool:t", signal.SIGINT, 9)
    (tmp_path / "other").write_bytes(b"x" * 100_000)
    (report,) = copy_files(tmp_path / "other", pool / "t", resume=True, progress=False)
    assert report.resumed_bytes == 0
    assert (pool / "t").read_bytes() == b"x" * 100_000
    assert pool.ls() == ["t"]
