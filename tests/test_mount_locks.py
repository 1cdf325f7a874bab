"""Locks of files in mounts: by the rules of the system, and between mounts."""

import contextlib
import errno
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lockers import answered, lockers
from mounted import mounted
from served import Served, serve


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("pool")) as served:
        yield served


@pytest.fixture(scope="module")
def places(pool: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Mount a pool twice."""
    above = tmp_path_factory.mktemp("mounts")
    with mounted(pool, above / "one") as one, mounted(pool, above / "two") as two:
        yield [one.place, two.place]


@pytest.fixture
def paths(places: list[Path], request: pytest.FixtureRequest) -> list[Path]:
    """Return the paths of one new file in both mounts."""
    name = f"test-{abs(hash(request.node.name))}"
    (places[0] / name).touch()
    return [place / name for place in places]


BYTES = 40


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.exhaustive(keep=1)
def test_random_locks_are_those_of_a_directory(
    paths: list[Path], tmp_path: Path, seed: int
) -> None:
    draw, real = random.Random(seed), tmp_path / "real"
    verbs = ["s", "x", "u"] * 4 + ["ofds", "ofdx", "ofdu", "flocks", "flockx", "flocku", "reopen"]
    # The first two use one mount, the others another one.
    one, two = paths
    with lockers(one, one, two, two) as ours, lockers(*[real] * 4) as theirs:
        for step in range(200):
            who, verb = draw.randrange(3), draw.choice(verbs)
            start, length = draw.randrange(BYTES - 8), draw.choice([0, 1, 2, 3, 5, 8])
            line = f"{verb} {start} {length}"
            answers = [each[who].ask(line) for each in (ours, theirs)]
            assert answers[0] == answers[1], (step, who, line)
            if step % 20 == 19:
                for byte in range(BYTES):
                    # The last ones hold no locks. Shared locks of several owners have no order.
                    found, right = (each[3].ask(f"test {byte} 1") for each in (ours, theirs))
                    assert found == right or (found[0] == right[0] == "s"), (step, byte)


def test_whole_files_are_locked_between_mounts(paths: list[Path]) -> None:
    with lockers(*paths) as (one, two):
        assert one.ask("flocks") == two.ask("flocks") == "done"
        assert two.ask("flocku") == "done"
        assert one.ask("flockx") == "done"
        assert two.ask("flocks") == "EAGAIN"
        assert one.ask("flocks") == "done"
        assert two.ask("flocks") == "done"
        two.send("wait-flock")
        # Both lose their shared locks when they ask for exclusive ones, as in Linux.
        one.send("wait-flock")
        first, second = (one, two) if answered([one, two])[0] is one else (two, one)
        assert first.answer() == "done"
        assert first.ask("flocku") == "done"
        assert second.answer() == "done"


def test_flock_and_fcntl_are_independent(paths: list[Path]) -> None:
    with lockers(*paths) as (one, two):
        assert one.ask("flockx") == one.ask("x 0 0") == "done"
        assert two.ask("flocks") == two.ask("s 0 0") == "EAGAIN"
        assert one.ask("u 0 0") == "done"
        assert two.ask("flocks") == "EAGAIN"
        assert two.ask("x 0 0") == "done"
        assert one.ask("flocku") == "done"
        assert two.ask("flockx") == "done"


def test_a_lock_of_flock_ends_with_the_last_descriptor(paths: list[Path]) -> None:
    fd = os.open(paths[0], os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    other = os.dup(fd)
    os.close(fd)
    os.close(os.open(paths[0], os.O_RDWR))
    with lockers(paths[1]) as (two,):
        assert two.ask("flocks") == "EAGAIN"
        os.close(other)
        assert two.ask("wait-flock") == "done"


def test_locks_of_open_file_descriptions_end_with_the_last_descriptor(paths: list[Path]) -> None:
    with lockers(*paths) as (one, two):
        assert one.ask("ofdx 3 4") == "done"
        assert one.ask("reopen") == "done"
        assert two.ask("ofds 0 4") == two.ask("s 6 1") == "EAGAIN"
        assert one.ask("close") == "done"
        assert two.ask("wait 0 0") == "done"


def test_locks_of_fcntl_end_with_any_descriptor_and_with_the_process(paths: list[Path]) -> None:
    with lockers(*paths, paths[1]) as (one, two, three):
        assert one.ask("x 0 0") == "done"
        assert two.ask("s 0 1") == "EAGAIN"
        assert one.ask("reopen") == "done"
        assert two.ask("x 0 0") == "done"
        two.end()
        assert three.ask("wait 0 0") == "done"


def test_a_wait_ends_with_the_lock_or_a_signal(paths: list[Path]) -> None:
    with lockers(*paths, paths[1], paths[0]) as (one, two, three, four):
        assert one.ask("x 0 10") == "done"
        two.send("wait 5 1")
        three.send("wait 6 1")
        four.send("wait-flock")
        assert four.answer() == "done"
        four.send("wait 7 1")
        assert three.process.poll() is None
        three.process.send_signal(signal.SIGTERM)
        assert three.process.wait() == -signal.SIGTERM
        assert four.interrupt() == "interrupted"
        assert four.ask("s 20 1") == "done"
        assert one.ask("u 0 10") == "done"
        assert two.answer() == "done"
        assert one.ask("test 5 1") == "x 5 1"
        assert one.ask("test 6 1") == one.ask("test 7 1") == "free"


def test_programs_that_wait_get_the_lock_in_turn(places: list[Path], paths: list[Path]) -> None:
    with lockers(*paths * 20) as (first, *others):
        assert first.ask("x 0 1") == "done"
        for each in others:
            each.send("wait 0 1")
        # They do not occupy the mount.
        (places[0] / "beside").write_text("free")
        assert (places[1] / "beside").read_text() == "free"
        holder = first
        while others:
            assert holder.ask("u 0 1") == "done"
            (holder,) = answered(others)
            assert holder.answer() == "done"
            assert first.ask("test 0 1") == "x 0 1"
            others.remove(holder)


def test_writes_under_a_lock_are_read_under_the_next(paths: list[Path]) -> None:
    files = [path.open("ab+", buffering=0) for path in paths]
    try:
        for number in range(60):
            file = files[number % 2]
            fcntl.lockf(file, fcntl.LOCK_EX)
            file.seek(0)
            assert int(file.read(20) or b"0") == number
            assert os.fstat(file.fileno()).st_size == (0 if number == 0 else 4)
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), b"%04d" % (number + 1))
            fcntl.lockf(file, fcntl.LOCK_UN)
    finally:
        for file in files:
            file.close()


@pytest.mark.parametrize("call", [fcntl.flock, fcntl.lockf])
def test_a_lock_file_guards_a_data_file_that_stays_open(
    paths: list[Path], call: Callable[[int, int], None]
) -> None:
    locks = [path.open("rb+", buffering=0) for path in paths]
    names = [path.with_suffix(".data") for path in paths]
    names[0].touch()
    files = [name.open("rb+", buffering=0) for name in names]
    try:
        modified = 0
        for number in range(40):
            lock, file, name = (each[number % 2] for each in (locks, files, names))
            call(lock.fileno(), fcntl.LOCK_EX)
            file.seek(0)
            assert int(file.read(20) or b"0") == number
            found = name.stat()
            assert found.st_size == os.fstat(file.fileno()).st_size == (4 if number else 0)
            assert number == 0 or found.st_mtime_ns > modified
            modified = found.st_mtime_ns
            os.truncate(file.fileno(), 0)
            os.pwrite(file.fileno(), b"%04d" % (number + 1), 0)
            # The mount knows these attributes, and may cache them without a lock.
            assert name.stat().st_size == 4
            call(lock.fileno(), fcntl.LOCK_UN)
    finally:
        for file in locks + files:
            file.close()


def test_a_mount_with_a_lock_sees_what_others_create_and_remove(paths: list[Path]) -> None:
    locks = [path.open("rb+", buffering=0) for path in paths]
    journals = [path.with_suffix(".journal") for path in paths]
    try:
        for number in range(20):
            fcntl.flock(locks[number % 2], fcntl.LOCK_EX)
            journal = journals[number % 2]
            if number % 3 == 0:
                assert not journal.exists()
            else:
                assert journal.stat().st_size == len(journal.read_bytes()) == number
            if number % 3 == 2:
                journal.unlink()
            else:
                journal.write_bytes(b"x" * (number + 1))
                assert journal.stat().st_size == number + 1
            fcntl.flock(locks[number % 2], fcntl.LOCK_UN)
    finally:
        for lock in locks:
            lock.close()


def test_a_lock_shows_others_writes_to_a_new_file(places: list[Path]) -> None:
    # The mount that creates a file knows its attributes for a second.
    with (places[0] / "new").open("xb+") as one, (places[1] / "new").open("rb+") as two:
        fcntl.lockf(two, fcntl.LOCK_EX)
        os.write(two.fileno(), b"12345")
        fcntl.lockf(two, fcntl.LOCK_UN)
        fcntl.lockf(one, fcntl.LOCK_EX)
        assert os.fstat(one.fileno()).st_size == 5
        assert os.read(one.fileno(), 9) == b"12345"
        os.fchmod(one.fileno(), 0o666)
        fcntl.lockf(one, fcntl.LOCK_UN)
        fcntl.lockf(two, fcntl.LOCK_EX)
        assert os.fstat(two.fileno()).st_mode & 0o777 == 0o666


def test_a_file_that_is_removed_stays_locked_for_those_who_have_it(paths: list[Path]) -> None:
    with lockers(paths[0], paths[0]) as (one, two):
        paths[0].unlink()
        assert one.ask("x 0 1") == "done"
        assert two.ask("x 0 1") == "EAGAIN"
        assert one.ask("u 0 1") == "done"
        assert two.ask("x 0 1") == "done"


def test_locks_are_refused_on_request(pool: Served, tmp_path: Path) -> None:
    with mounted(pool, tmp_path / "m", "--no-locks") as mount, lockers(mount.place / "f") as (one,):
        verbs = ["s", "x", "u", "wait", "test", "ofdx", "flocks", "flockx", "flocku", "wait-flock"]
        assert [one.ask(verb) for verb in verbs] == ["ENOLCK"] * len(verbs)
        base = sqlite3.connect(mount.place / "g", timeout=0)
        with contextlib.closing(base), pytest.raises(sqlite3.OperationalError):
            base.execute("create table rows (number)")


def test_a_lock_needs_a_right_to_the_file(pool: Served, tmp_path: Path) -> None:
    user = Served(pool.url, pool.key_of("user", 1234, 1234))
    with mounted(pool, tmp_path / "all") as all_rights, mounted(user, tmp_path / "user") as mount:
        path = all_rights.place / "shared"
        path.touch()
        path.chmod(0o604)
        with (mount.place / "shared").open("rb") as file, lockers(path) as (one,):
            fcntl.flock(file, fcntl.LOCK_EX)
            assert one.ask("flockx") == "EAGAIN"
            fcntl.flock(file, fcntl.LOCK_UN)
            path.chmod(0o600)
            with pytest.raises(PermissionError) as refused:
                fcntl.flock(file, fcntl.LOCK_EX)
            assert refused.value.errno == errno.EACCES


WRITER = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=600, isolation_level=None)
for number in range(int(sys.argv[2])):
    base.execute("begin immediate")
    (most,) = base.execute("select count(*) from rows").fetchone()
    base.execute("insert into rows values (?, ?)", (most, sys.argv[3]))
    base.execute("commit")
"""


@pytest.mark.parametrize("count", [8, 100])
@pytest.mark.exhaustive(keep=1)
def test_sqlite_with_writers_on_two_mounts(paths: list[Path], count: int) -> None:
    with contextlib.closing(sqlite3.connect(paths[0])) as base:
        base.execute("create table rows (number integer primary key, writer text)")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(count), str(number)])
        for number, path in enumerate(paths * 2)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    with contextlib.closing(sqlite3.connect(paths[1])) as base:
        assert base.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = base.execute("select number, writer from rows order by 1").fetchall()
    assert [number for number, _ in rows] == list(range(4 * count))
    assert sorted(writer for _, writer in rows) == sorted([*"0123"] * count)
