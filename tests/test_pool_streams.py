"""Files of a pool as files of Python: they behave like plain binary files."""

import csv
import gzip
import io
import json
import pickle
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from served_pools import some_pool

import outcore as oc
from outcore.errors import ArgumentTypeError, ClosedError, ReadOnlyError, TruncatedError
from outcore.storage.pool_file import BUFFER_BYTES

LINES = b"0123456789 0123456789 0123456789\n" * 300


@pytest.fixture
def pool() -> Iterator[oc.Pool]:
    with some_pool("embedded") as pool:
        yield pool


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[oc.Pool]:
    """A pool with one server, in which each request is one message."""
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        yield pool


def filled(pool: oc.Pool, content: bytes, name: str = "f") -> None:
    with pool.open(name, "w") as file:
        file.write(content)


def random_lines(source: random.Random, count: int) -> bytes:
    sizes = [0, 1, 2, 5, 100, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1]
    weights = [4, 4, 4, 4, 4, 1, 1, 1]
    drawn = source.choices(sizes, weights, k=count)
    return b"\n".join(source.randbytes(size).replace(b"\n", b"-") for size in drawn)


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_is_as_with_a_plain_file(pool: oc.Pool, tmp_path: Path, seed: int) -> None:
    """Compare with a plain file after each of 200 operations."""
    source = random.Random(seed)
    content = random_lines(source, 30)
    (tmp_path / "f").write_bytes(content)
    filled(pool, content)
    sizes = [-1, 0, 1, 7, 1000, BUFFER_BYTES, 2 * BUFFER_BYTES]
    with open(tmp_path / "f", "r+b") as plain, pool.open("f", "r+") as file:

        def both(do: Callable[[Any], Any]) -> None:
            assert do(file) == do(plain)

        for _ in range(200):
            size, at = source.choice(sizes), source.randrange(len(content) + 100)
            match source.randrange(14):
                case 0:
                    both(lambda f, size=size: f.read(size))
                case 1 | 2 | 3 | 4:
                    both(lambda f: f.readline())
                case 5:
                    both(lambda f, size=size: f.readline(size))
                case 6:
                    both(lambda f: f.readlines(1000))
                case 7:
                    both(lambda f, size=size: _into(f.readinto, max(size, 0)))
                case 8:
                    ahead = file.peek(10)
                    assert ahead == plain.read(len(ahead))
                    assert ahead or not plain.read(1)
                    file.read(len(ahead))
                case 9:
                    part = file.read1(size)
                    assert part == plain.read(len(part))
                    assert part or size == 0 or not plain.read(1)
                case 10 | 11:
                    both(lambda f, at=at: f.seek(at))
                case 12:
                    piece = source.randbytes(source.choice([1, 10, 1000])) + b"\n"
                    both(lambda f, piece=piece: f.write(piece))
                    plain.flush()
                case _:
                    both(lambda f, at=at: f.truncate(at))
            both(lambda f: f.tell())
        plain.seek(0)
        file.seek(0)
        assert file.read() == plain.read()


def _into(read: Callable[[bytearray], int], size: int) -> tuple[int, bytearray]:
    buffer = bytearray(size)
    return read(buffer), buffer


def test_lines_take_a_message_for_each_quarter_of_a_mebibyte(one_server: oc.Pool) -> None:
    filled(one_server, LINES)
    before = one_server.messages
    with one_server.open("f") as file:
        assert list(file) == LINES.splitlines(keepends=True)
        # One message for the length, one for the bytes, and one for the length at the end.
        assert one_server.messages - before == 3
        file.seek(0)
        assert file.readlines() == LINES.splitlines(keepends=True)
        assert one_server.messages - before == 6
    content = b"x\n" * BUFFER_BYTES
    filled(one_server, content, "long")
    before = one_server.messages
    with one_server.open("long") as file:
        assert sum(1 for _ in file) == BUFFER_BYTES
        assert one_server.messages - before == 2 * 2 + 1


def test_each_read_asks_the_servers(one_server: oc.Pool) -> None:
    filled(one_server, LINES)
    with one_server.open("f") as file:
        for read in (lambda: file.read(10), lambda: file.readinto(bytearray(10))):
            before = one_server.messages
            read()
            assert one_server.messages - before == 2
        before = one_server.messages
        assert file.peek(1)[:13] == LINES[20:33]
        assert file.read1(3) == LINES[20:23]
        assert file.readline() == LINES[23:33]
        assert one_server.messages - before == 2


def test_a_write_of_another_client_is_seen(pool: oc.Pool) -> None:
    filled(pool, b"old1\nold2\nold3\n")
    with pool.open("f") as file, pool.open("f", "r+") as other:
        assert file.readline() == b"old1\n"
        other.write(b"new1\nnew2\nnew3\n")
        # `readline` uses bytes that were read ahead. `read` does not, nor does `readline` after a
        # seek.
        assert file.readline() == b"old2\n"
        assert file.read(5) == b"new3\n"
        file.seek(5)
        assert file.readline() == b"new2\n"
        other.write(b"new4\n")
        assert list(file) == [b"new3\n", b"new4\n"]
        assert file.readline() == b""
        other.write(b"new5\n")
        assert file.readline() == b"new5\n"
        other.truncate(2)
        file.seek(0)
        assert file.readline() == b"ne"


def test_an_own_write_is_seen_and_not_delayed(pool: oc.Pool) -> None:
    filled(pool, b"one\ntwo\nthree\n")
    with pool.open("f", "r+") as file, pool.open("f") as other:
        assert file.readline() == b"one\n"
        file.write(b"TWO\n")
        assert other.read() == b"one\nTWO\nthree\n"
        assert file.readline() == b"three\n"
        file.seek(0)
        assert file.peek()[:3] == b"one"
        file.write_at(0, b"ONE")
        assert file.readline() == b"ONE\n"
        file.start_write_at(4, b"two").result()
        assert file.readline() == b"two\n"
        file.truncate(9)
        assert file.readline() == b"t"


def test_what_every_file_has(pool: oc.Pool) -> None:
    modes = {"w": "wb", "r": "rb", "rb": "rb", "r+b": "rb+", "ab": "ab", "w+": "wb+"}
    for given, mode in modes.items():
        with pool.open("f", given) as file:
            assert file.mode == mode
            assert isinstance(file, io.BufferedIOBase)
            assert isinstance(file, io.RawIOBase)
            assert (file.readable(), file.seekable(), file.isatty()) == (True, True, False)
            assert file.writable() == (mode != "rb")
            for unsupported in (file.fileno, file.detach):
                with pytest.raises(io.UnsupportedOperation):
                    unsupported()
            assert file.flush() is None
            assert not file.closed
        assert file.closed
        file.close()
    calls = (
        file.read, file.readall, file.readline, file.readlines, file.tell, file.peek, file.read1,
        file.flush, file.isatty, file.readable, file.writable, file.seekable, file.__enter__,
        lambda: file.readinto(bytearray(1)), lambda: file.write(b"x"), lambda: file.seek(0),
        lambda: file.truncate(0), lambda: next(file), lambda: file.writelines([b"x"]),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ClosedError):
        file.read()


def test_types_that_are_no_bytes(pool: oc.Pool) -> None:
    with pool.open("f", "w") as file:
        for data in ("text", 1, None, 1.5):
            with pytest.raises(TypeError, match="need bytes"):
                file.write(data)
            with pytest.raises(ArgumentTypeError, match="need bytes"):
                file.write_at(0, data)
        for buffer in (b"bytes", "text", 1):
            with pytest.raises(TypeError, match="buffer"):
                file.readinto(buffer)
        for call in (file.read, file.seek, file.truncate, file.readline, file.read1):
            with pytest.raises(TypeError, match="integer"):
                call("1")
        assert file.nbytes == 0
        assert file.write(memoryview(np.arange(3, dtype="i4"))) == 12
        with pytest.raises(ValueError, match="at least 0"):
            file.seek(-1)
    with pool.open("f") as file:
        for call in (lambda: file.write(b"x"), file.truncate):
            with pytest.raises(io.UnsupportedOperation):
                call()
            with pytest.raises(ReadOnlyError, match=r"open it with mode='r\+'"):
                call()


def test_a_read_far_beyond_the_end_takes_no_memory(pool: oc.Pool) -> None:
    filled(pool, b"abc")
    with pool.open("f") as file:
        for read in (
            lambda: file.read_at(0, 2**50),
            lambda: file.read_at(2**40, 1),
            lambda: file.read_strided(0, 0, 2**45, 2, 2**45),
            lambda: file.view(0, 2**45, 2**45).read_at(0, 2**50),
            lambda: file.start_read_at(1, 2**50),
        ):
            with pytest.raises(TruncatedError, match="the file ends at 3"):
                read().result()


def test_text(pool: oc.Pool) -> None:
    rows = [["name", "value"], ["ä", "1"], ["with\nline", "2"]]
    with io.TextIOWrapper(pool.open("t.csv", "w"), "utf-8", newline="") as text:
        csv.writer(text).writerows(rows)
    with io.TextIOWrapper(pool.open("t.csv"), "utf-8", newline="") as text:
        assert list(csv.reader(text)) == rows
        text.seek(0)
        assert text.readline() == "name,value\r\n"
        at = text.tell()
        assert text.readline() == "ä,1\r\n"
        text.seek(at)
        assert text.read(1) == "ä"
    with pool.open("t.csv") as file:
        assert pd.read_csv(file).values.tolist() == [["ä", 1], ["with\nline", 2]]
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    with pool.open("p.csv", "w") as file:
        frame.to_csv(file, index=False)
    with pool.open("p.csv") as file:
        pd.testing.assert_frame_equal(pd.read_csv(file), frame)


def test_libraries_that_write_and_read_files(pool: oc.Pool) -> None:
    array = np.random.default_rng(0).random((40, 30))
    with pool.open("a.npy", "w") as file:
        np.save(file, array)
    with pool.open("a.npy") as file:
        np.testing.assert_array_equal(np.load(file), array)
    with pool.open("a.npz", "w") as file:
        np.savez(file, array=array, other=array.T)
    with pool.open("a.npz") as file, np.load(file) as found:
        np.testing.assert_array_equal(found["other"], array.T)
    with pool.open("a.txt", "w") as file:
        np.savetxt(file, array)
    with pool.open("a.txt") as file:
        np.testing.assert_array_equal(np.loadtxt(file), array)
    values = {"list": list(range(1000)), "array": array.tobytes() * 20}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pool.open("p", "w") as file:
            pickle.dump(values, file, protocol)
            pickle.dump("next", file, protocol)
        with pool.open("p") as file:
            assert pickle.load(file) == values
            assert pickle.load(file) == "next"
    with pool.open("j", "w") as file:
        file.write(json.dumps(values["list"]).encode())
    with pool.open("j") as file:
        assert json.load(file) == values["list"]


def test_archives_and_copies(pool: oc.Pool) -> None:
    contents = {"one": LINES * 20, "two/three": b"", "four": b"4"}
    with pool.open("z", "w") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with pool.open("z", "r+") as file, zipfile.ZipFile(file, "a") as archive:
        archive.writestr("five", b"5")
        assert archive.testzip() is None
        assert {each: archive.read(each) for each in archive.namelist()} == contents | {
            "five": b"5"
        }
    for kind in ("", "gz"):
        with pool.open("t", "w") as file, tarfile.open(fileobj=file, mode=f"w:{kind}") as tar:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        for mode in ("r:*", "r|*"):
            with pool.open("t") as file, tarfile.open(fileobj=file, mode=mode) as tar:
                found = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
                assert found == contents
    with pool.open("g", "w") as file, gzip.GzipFile(fileobj=file, mode="w") as packed:
        packed.write(LINES)
    with pool.open("g") as file, gzip.open(file) as packed:
        assert packed.readlines() == LINES.splitlines(keepends=True)
    with pool.open("z") as source, pool.open("copy", "w") as target:
        shutil.copyfileobj(source, target)
    assert pool.open("copy").read() == pool.open("z").read()
    with io.BufferedWriter(pool.open("w", "w")) as writer:
        for line in LINES.splitlines(keepends=True):
            writer.write(line)
    with io.BufferedReader(pool.open("w")) as reader:
        assert list(reader) == LINES.splitlines(keepends=True)
