"""Pools embedded in the process: names, files, regions, arrays, and locks on directories."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from timeouts import HANG_S

import outcore as oc
from outcore import _core
from outcore.errors import (
    BusyError,
    ClosedError,
    ExistsError,
    ForkedError,
    InvalidError,
    NotFoundError,
    ReadOnlyError,
    TruncatedError,
)
from outcore.storage.volumes import place

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as opened:
        yield opened


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8)


def test_a_file_is_like_any_file(pool: oc.Pool) -> None:
    with pool.open("d/f", "w") as file:
        assert file.write(b"hello ") == 6
        assert file.write(bytearray(b"world")) == 11 - 6
        assert (file.tell(), file.nbytes) == (11, 11)
        file.seek(-5, 2)
        assert file.read(3) == b"wor"
        assert file.read() == b"ld"
        assert file.read() == b""
        assert file.truncate(5) == 5
        assert file.seek(0) == 0
        assert file.readall() == b"hello"
    with pytest.raises(ClosedError):
        file.tell()
    with pool.open("d/f") as file:
        assert (file.read(), file.readable(), file.writable()) == (b"hello", True, False)
        with pytest.raises(ReadOnlyError, match="r\\+"):
            file.write(b"x")
        with pytest.raises(ReadOnlyError):
            file.truncate(0)
        with pytest.raises(TruncatedError):
            file.read_at(3, 3)
    with pool.open("d/f", "ab") as file:
        file.write(b"!")
    assert (pool / "d/f").read_bytes() == b"hello!"
    with pool.open("d/f", "w") as file:
        assert file.nbytes == 0
    with pytest.raises(ExistsError):
        pool.open("d/f", "x")
    with pytest.raises(NotFoundError):
        pool.open("none")
    with pytest.raises(InvalidError, match="mode"):
        pool.open("d/f", "rw")


def test_appending_goes_to_the_end(pool: oc.Pool, tmp_path: Path) -> None:
    """Run the same calls on a plain file: Python's `open` defines the semantics."""
    for mode in ("ab", "a+b"):
        texts = []
        for opening in (lambda m: pool.open("log", m), lambda m: (tmp_path / "log").open(m)):
            opening("wb").close()
            with opening(mode) as file, opening(mode) as other:
                file.write(b"abcd")
                file.seek(0)
                file.write(b"ZZ")
                if isinstance(file, oc.PoolFile):
                    assert file.tell() == 6
                file.flush()
                assert other.write(b"other") == 5
                other.flush()
                file.write(b"!")
            with opening(mode) as file:
                assert file.tell() == 12
                file.write(b"?")
            with opening("rb") as file:
                texts.append(file.read())
        assert texts == [b"abcdZZother!?"] * 2
    with pool.open("log", "a") as file:
        file.seek(-3, 2)
        assert file.read() == b"r!?"
        file.write_at(0, b"AB")  # a write at an offset ignores the append mode
        assert file.write(b"end") == 3
    assert (pool / "log").read_bytes() == b"ABcdZZother!?end"


def test_modes_are_pythons(pool: oc.Pool) -> None:
    for mode in ("x", "w+", "w+b", "a+", "ab+"):
        with pool.open("f", mode) as file:
            file.write(b"abc")
            file.seek(0)
            assert file.read() == b"abc" * (1 + (mode[0] == "a") + (mode == "ab+"))
    with pytest.raises(ExistsError):
        pool.open("f", "x+")
    with pool.open("g", "xb+") as file:
        file.write(b"new")
    for mode in ("", "b", "+", "wa", "rw", "r++", "bab", "t"):
        with pytest.raises(InvalidError, match="mode must be"):
            pool.open("f", mode)
    # A file in place of a directory is not mistaken for a file that another client just created.
    with pytest.raises((ExistsError, InvalidError, NotFoundError)):
        pool.open("f/g", "w")


def test_strided_requests_are_the_papers(pool: oc.Pool) -> None:
    """Cettei, Ligon and Ross (1997), section 3.2 and figure 3."""
    data = noise(54_000)
    with pool.open("f", "w", hints={"striping_unit": 1000}) as file:
        file.write(data)
        # rl = 400, fs = 300, gs = 500, gc = 2, sd = 800, ls = 400
        found = file.read_strided(400, 300, 500, 2, 800, 400)
        pieces = [data[400:700], data[1000:1500], data[1800:2300], data[2600:3000]]
        assert (found == np.concatenate(pieces)).all()
        # 1000 bytes of each of three rows of 6000 bytes
        block = np.empty((3, 1000), np.uint8)
        file.read_strided(20_000, 0, 1000, 3, 6000, out=block)
        assert (block == data.reshape(9, 6000)[3:6, 2000:3000]).all()
        file.write_strided(20_000, 0, 1000, 3, 6000, data=255 - block)
        data.reshape(9, 6000)[3:6, 2000:3000] ^= 255
        assert (file.read_at(0, len(data)) == data).all()


def test_a_request_is_one_message_to_each_server(pool: oc.Pool) -> None:
    data = noise(1 << 20)
    with pool.open("f", "w", hints={"stripe_unit_bytes": "4 KiB"}) as file:
        file.write(data)
        file.sync()

        def messages(call: Callable[[], object]) -> int:
            before = pool.messages
            call()
            return pool.messages - before

        # 512 bytes of every 4096 lie on both servers; of every 8192, on the first alone.
        assert messages(lambda: file.read_strided(0, 0, 512, 256, 4096)) == 2
        assert messages(lambda: file.read_strided(0, 0, 512, 128, 8192)) == 1
        at = np.arange(0, 1 << 20, 1000)
        found: list[np.ndarray] = []
        assert messages(lambda: found.append(file.read_list(at, 100))) == 2
        assert (found[0].reshape(-1, 100) == data[at[:, None] + np.arange(100)]).all()
        assert messages(lambda: file.write_list(at, 3, data=bytes(3 * len(at)))) == 2
        data[at[:, None] + np.arange(3)] = 0
        assert (file.read_at(0, len(data)) == data).all()
        assert messages(file.sync) == 2


def test_memory_may_be_in_pieces_too(pool: oc.Pool) -> None:
    matrix = np.arange(600.0).reshape(20, 30)
    with pool.open("f", "w") as file:
        file.write_at(0, matrix.T)
        assert (file.read_at(0, 4800).view("f8").reshape(30, 20) == matrix.T).all()
        target = np.zeros((20, 60))
        file.read_at(0, out=target.T[::-2])
        assert (target.T[::-2] == matrix.T).all()
        assert not target.T[::2].any()
        locked = np.zeros(8)
        locked.flags.writeable = False
        with pytest.raises(InvalidError, match="cannot be written"):
            file.read_at(0, out=locked)
        with pytest.raises(InvalidError, match="need memory of 100 bytes"):
            file.read_list([0], 100, out=np.empty(5))
        with pytest.raises(InvalidError, match="length for each of 2"):
            file.read_list([0, 1], [1, 2, 3])
        with pytest.raises(InvalidError, match="at least 0"):
            file.read_list([-1], 1)


def test_a_view_has_no_gaps(pool: oc.Pool) -> None:
    data = noise(5000)
    model = data.copy()
    with pool.open("f", "w", hints={"stripe_unit_bytes": 64}) as file:
        file.write(data)
        view = file.view(100, 30, 110)
        inside = (100 + np.arange(40)[:, None] * 110 + np.arange(30)).ravel()
        for at, count in [
            (0, 30),
            (0, 29),
            (5, 10),
            (5, 25),
            (5, 26),
            (35, 200),
            (60, 0),
            (29, 900),
        ]:
            assert (view.read_at(at, count) == data[inside[at : at + count]]).all()
        view.write_at(17, noise(333))
        model[inside[17 : 17 + 333]] = noise(333)
        assert (file.read_at(0, 5000) == model).all()
        with pytest.raises(InvalidError, match="groups"):
            file.view(0, 10, 5)


def test_names(pool: oc.Pool) -> None:
    pool.mkdir("d/e")
    pool.open("d/f", "w").close()
    assert (pool.ls(), pool.ls("d"), pool.ls(pool / "d" / "e")) == (["d"], ["e", "f"], [])
    assert pool.stat("d").is_directory
    with pytest.raises(ExistsError):
        pool.mkdir("d")
    pool.mkdir("d", exist_ok=True)
    with pytest.raises(InvalidError, match="recursive"):
        pool.rm("d")
    pool.mv("d/f", "g/h")
    assert (pool.exists("d/f"), pool.exists("g/h")) == (False, True)
    pool.rm("d/e")
    pool.rm("g", recursive=True)
    assert pool.ls() == ["d"]
    for wrong in ("/d", "../d", "a/../d"):
        with pytest.raises(InvalidError):
            pool / wrong


def test_hints_say_how_a_file_lies(pool: oc.Pool) -> None:
    pool.open("f", "w", hints={"striping_unit": "1 MiB", "striping_factor": 1, "start_iodevice": 1,
                               "cb_buffer_size": 4}).close()  # fmt: skip
    found = pool.stat("f")
    assert (found.stripe_unit_bytes, found.servers, found.nbytes) == (1 << 20, (1,), 0)
    # outcore stores hints that it does not know.
    assert pool.listxattr("f") == ["hint.cb_buffer_size"]
    assert pool.getxattr("f", "hint.cb_buffer_size") == b"4"
    with pytest.raises(InvalidError, match="stripe_count"):
        pool.open("g", "w", hints={"stripe_count": 0})


def test_paths_are_like_paths(pool: oc.Pool, tmp_path: Path) -> None:
    path = pool / "sim" / "u.dat"
    assert (path.name, path.stem, path.suffix) == ("u.dat", "u", ".dat")
    assert path.parent == pool / "sim"
    assert path.parents == (pool / "sim", (pool / "sim").parent)
    assert path.with_name("v") == pool / "sim/v"
    assert str(path) == f"outcore:{tmp_path / 'a'}::sim/u.dat" == os.fspath(path)
    # A URL also names the array after a `pathlib.Path` has collapsed its slashes.
    for text in (str(path), Path(str(path))):
        assert place(text).path == path
    assert not path.exists()
    path.write_bytes(b"abc")
    assert path.exists()
    assert path.is_file()
    assert path.parent.is_dir()
    assert list(path.parent.iterdir()) == [path]
    assert len({path, pool / "sim/u.dat", path.parent}) == 2


def test_a_url_of_a_pool_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidError, match=r"not open in this process; open the pool with oc\.Pool"
    ):
        oc.open_array("outcore:/nowhere::A")
    for managers in ("host:1", "[::1]:1", "a:1,b:2"):
        for name in ("A", "A::B"):
            with pytest.raises(InvalidError, match=r"oc\.connect"):
                oc.open_array(f"outcore://{managers}/{name}")
    with pytest.raises(InvalidError, match="no name in a pool"):
        oc.open_array("outcore:/nowhere")


def test_a_pool_is_opened_once(
    tmp_path: Path, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    with oc.Pool.embedded(directories) as pool:
        pool.open("f", "w").close()
        with pytest.raises(BusyError):
            oc.Pool.embedded(directories)
        script = (
            "import sys, outcore as oc\n"
            "try:\n    oc.Pool.embedded(sys.argv[1:])\n"
            "except oc.errors.BusyError as error:\n    print('busy', error)\n"
        )
        other = run_python(script, *map(str, directories))
        out, err = other.communicate(timeout=HANG_S)
        assert out.startswith("busy"), err
        # Another pool cannot use a single directory of it either.
        with pytest.raises((BusyError, InvalidError)):
            oc.Pool.embedded([tmp_path / "c", tmp_path / "b"])
    with oc.Pool.embedded(directories) as pool:
        assert pool.ls() == ["f"]
        with pytest.raises(ClosedError):
            (lambda closed: (closed.close(), closed.ls()))(pool)


def test_all_directories_of_a_pool_are_needed(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    with oc.Pool.embedded([first, second]) as pool:
        identity = pool.id
        (pool / "f").write_bytes(b"kept")
    with pytest.raises(InvalidError, match="all 2 servers"):
        oc.Pool.embedded([first])
    with pytest.raises(InvalidError, match="named twice"):
        oc.Pool.embedded([first, second, second])
    with pytest.raises(InvalidError, match="another pool"):
        oc.Pool.embedded([third, second])
    with oc.Pool.embedded([first, tmp_path / "d", second]) as pool:
        assert (pool.id, (pool / "f").read_bytes()) == (identity, b"kept")
        assert sorted(server.id for server in pool.servers()) == [0, 1, 2]
        pool.open("g", "w").close()
        assert len(pool.stat("g").servers) == 3
    with pytest.raises(InvalidError, match="list of directories"):
        oc.Pool.embedded(str(first))


def test_arrays_lie_in_a_pool(pool: oc.Pool, tmp_path: Path) -> None:
    data = np.random.default_rng(1).normal(size=(300, 200))
    A = oc.create_array(pool / "sim/A", data.shape, "f8", chunks=(64, 100), attributes={"k": 1})
    A[...] = data
    A[10:20, 3:150:7] = data[10:20, 3:150:7] + 1
    expected = data.copy()
    expected[10:20, 3:150:7] += 1
    A.flush()
    assert (A[5:250:3, ::-1] == expected[5:250:3, ::-1]).all()
    for index, block in A.stream():
        assert (block == expected[index]).all()
    blocks = A.blocks()
    assert (blocks[1, 1] == expected[64:128, 100:]).all()
    shard = pool / "sim/A/c/0/0"
    assert A.metadata.grid().slot_bytes == 65_536
    assert pool.stat(shard).stripe_unit_bytes == 16 * 65_536
    assert str(A.info()).startswith(f"array       {pool.url}sim/A")
    A.close()
    with oc.open_array(str(pool / "sim/A")) as again:
        assert (again[...] == expected).all()
        assert again.attrs == {"k": 1}
    oc.verify(pool / "sim/A", record=True)
    assert oc.verify(pool / "sim/A").checksums == "matched"
    with pytest.raises(ExistsError):
        oc.create_array(pool / "sim/A", 3)
    # Copy to a plain directory, and back.
    oc.from_array(pool / "sim/A", tmp_path / "copy", progress=False).close()
    B = oc.from_array(tmp_path / "copy", pool / "sim/B", progress=False)
    assert (B[...] == expected).all()
    oc.create_array(pool / "sim/A", 3, if_exists="overwrite").close()
    assert pool.ls("sim") == ["A", "B"]


def test_assembly_in_a_pool_goes_on(pool: oc.Pool) -> None:
    seen = []

    def fill(rows: slice, cols: slice) -> np.ndarray:
        seen.append(rows)
        if len(seen) == 3:
            raise RuntimeError("stopped")
        return np.add.outer(np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop))

    def make() -> oc.Array:
        return oc.create_array(
            pool / "A", (100, 40), "f8", chunks=(20, 40), fill=fill, memory=240_000, progress=False
        )

    with pytest.raises(RuntimeError, match="stopped"):
        make()
    with make() as A:
        assert (A[...] == np.add.outer(np.arange(100), np.arange(40))).all()
    assert len(seen) == 3 + 3
    assert pool.ls() == ["A"]


def test_a_pool_does_not_survive_a_fork(pool: oc.Pool) -> None:
    (pool / "f").write_bytes(b"abc")
    child = os.fork()
    if child == 0:
        try:
            pool.ls()
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (pool / "f").read_bytes() == b"abc"


WRITER = """
import sys
import numpy as np
import outcore as oc

pool = oc.Pool.embedded(sys.argv[1:])
A = oc.create_array(pool / "A", (256, 4096), "f8", chunks=(16, 4096))
for number in range(1, 1000):
    A[...] = number
    A.flush()
    (pool / "done").write_bytes(str(number).encode())
    print(number, flush=True)
"""


def test_a_killed_process_leaves_a_pool_that_opens(tmp_path: Path, run_python: Start) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for _ in range(3):
        writer = run_python(WRITER, *map(str, directories))
        assert writer.stdout is not None
        for _ in range(3):
            assert writer.stdout.readline().strip(), writer.stderr and writer.stderr.read()
        time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with oc.Pool.embedded(directories) as pool:
            done = int((pool / "done").read_bytes())
            with oc.open_array(pool / "A", "r+") as A:
                values = set(np.unique(A[...]).tolist())
                # Synced data survive; a block in flight has the old or the new value.
                assert values <= {float(done), float(done + 1), float(done + 2)}
                A[...] = -1
                assert (A[...] == -1).all()
            oc.create_array(pool / "A", 3, if_exists="overwrite").close()
            pool.rm("A", recursive=True)


def test_regions_are_described(pool: oc.Pool) -> None:
    regions = _core.Regions.nested([(5, 2, [(2, 10), (3, 3)])])
    assert regions.runs() == [(5, 2), (8, 2), (11, 2), (15, 2), (18, 2), (21, 2)]
    assert (regions.nbytes, regions.end) == (12, 23)
    with pytest.raises(InvalidError):
        _core.Regions.strided(0, 0, 500, 2, 400, 0)
