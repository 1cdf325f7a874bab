"""Files in a pool whose writers were killed before the files got their names."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import outcore
from served import Served, serve
from served_pools import in_memory, some_pool

import outcore as oc
from outcore.errors import ExistsError
from outcore.pool import fsck as pool_fsck
from outcore.pool.fsspec_filesystem import OutcoreFileSystem
from outcore.storage import pool_locks
from outcore.storage.pool_parts import is_left, is_part, new_part, remove_left
from outcore.storage.whole_file import WholeFile, write_whole

WRITER = """
import sys
import outcore as oc
from outcore.storage.whole_file import WholeFile
url, key, name, exclusive = sys.argv[1:]
with oc.connect(url, key=key) as pool:
    whole = WholeFile(pool / name, exclusive=exclusive == "True")
    whole.file.write(b"half")
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def served() -> Iterator[Served]:
    with in_memory() as directory, serve(directory) as found:
        yield found


@contextmanager
def writing(served: Served, name: str, *, exclusive: bool = False) -> Iterator[None]:
    """Start another process that writes a file, and kill it at the end."""
    command = [sys.executable, "-c", WRITER, served.url, str(served.key), name, str(exclusive)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "begun\n"
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def hidden(pool: oc.Pool, directory: str = "d") -> list[str]:
    return [name for name in pool.ls(directory) if is_part(name)]


def test_a_later_write_in_the_directory_removes_the_part_of_a_killed_writer(
    served: Served,
) -> None:
    with writing(served, "d/f"), oc.connect(served.url, key=served.key) as pool:
        write_whole(pool / "d" / "other", b"x")
        (part,) = hidden(pool)
        assert not is_left(pool / "d" / part)
        assert OutcoreFileSystem(pool=pool).ls("/d", detail=False) == ["/d/other"]
    with oc.connect(served.url, key=served.key) as pool:
        assert is_left(pool / "d" / part)
        write_whole(pool / "d" / "f", b"whole")
        assert pool.ls("d") == ["f", "other"]
        assert (pool / "d" / "f").read_bytes() == b"whole"


def test_rm_of_the_name_removes_its_part(served: Served) -> None:
    with oc.connect(served.url, key=served.key) as pool:
        write_whole(pool / "d" / "f", b"whole")
    with writing(served, "d/f"):
        pass
    with oc.connect(served.url, key=served.key) as pool:
        assert len(hidden(pool)) == 1
        result = outcore("rm", "--yes", "--key", served.key, f"{served.url}/d/f")
        assert result.exit_code == 0, result.output
        assert pool.ls("d") == []


def test_fsck_finds_parts_and_removes_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    host = pool_locks._host()
    with oc.connect(served.url, key=served.key) as pool:
        with WholeFile(pool / "d" / "mine"), writing(served, "d/e/f"):
            monkeypatch.setattr(pool_locks, "_host", lambda: "elsewhere")
            with WholeFile(pool / "far"):
                monkeypatch.setattr(pool_locks, "_host", lambda: host)
                assert pool_fsck.fsck(pool).findings == ()
                # With an age limit below zero, fsck names every part.
                with monkeypatch.context() as patch:
                    patch.setattr(pool_fsck, "_LONG_NS", -(10**18))
                    findings = pool_fsck.fsck(pool, repair=True).findings
                assert [each.repair for each in findings] == [None] * 3
                assert "begun a day ago" in findings[0].text
        (found,) = pool_fsck.fsck(pool).findings
        assert (found.kind, found.repair) == ("unfinished file", "remove it")
        assert found.path is not None
        assert found.path.startswith("d/e/.f.")
        assert pool.ls("d/e") == [found.path.removeprefix("d/e/")]
        assert pool_fsck.fsck(pool, repair=True).unrepaired == ()
        assert pool.ls("d/e") == []
        assert pool_fsck.fsck(pool).findings == ()


def test_a_file_that_must_be_new_is_made_after_its_writer_was_killed(served: Served) -> None:
    with oc.connect(served.url, key=served.key) as pool:
        with writing(served, "d/f", exclusive=True):
            with pytest.raises(ExistsError, match=r"being made by another; .* \S+making.part if"):
                write_whole(pool / "d" / "f", b"mine", exclusive=True)
            assert OutcoreFileSystem(pool=pool).ls("/d") == []
        write_whole(pool / "d" / "f", b"mine", exclusive=True)
        assert (pool / "d" / "f").read_bytes() == b"mine"
        with pytest.raises(ExistsError, match="choose another name"):
            write_whole(pool / "d" / "f", b"again", exclusive=True)
        remove_left(pool / "d")
        assert pool.ls("d") == ["f"]
        # A part also goes if no caller creates that file again.
        with writing(served, "d/g", exclusive=True):
            pass
        assert len(hidden(pool)) == 2
        remove_left(pool / "d")
        assert pool.ls("d") == ["f"]


def test_in_an_embedded_pool_every_part_of_another_process_is_left(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool, WholeFile(pool / "d" / "mine"):
        elsewhere = f".f.1.2.3.{'0' * 16}.another%20host.part"
        for name in (elsewhere, ".f.0123abcd.part", ".f.new.part", ".not.part"):
            pool.open(f"d/{name}", "w").close()
        pool.open("d/f", "w").close()
        remove_left(pool / "d")
        mine, *others = pool.ls("d")
        assert mine.startswith(".mine.")
        assert others == [".not.part", "f"]
    with some_pool("served") as pool:
        for name in (elsewhere, ".f.0123abcd.part"):
            pool.open(f"d/{name}", "w").close()
        write_whole(pool / "d" / "f", b"x")
        assert len(hidden(pool)) == 2


@pytest.mark.parametrize("name", ["a" * 255, "ä" * 127, ".x" * 100 + ".part", "n\nl"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_long_and_odd_names(name: str, exclusive: bool) -> None:
    with some_pool("embedded") as pool:
        path = pool / "d" / name
        with WholeFile(path, exclusive=exclusive) as whole:
            whole.file.write(b"x")
            assert len(hidden(pool)) == 1
            assert is_part(new_part(path).name)
            assert len(new_part(path).name.encode()) <= 255
        assert pool.ls("d") == [name]
