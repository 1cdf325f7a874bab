"""A pool as a file system of fsspec: cases beyond fsspec's own tests."""

import io
import os
import pickle
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from served_pools import some_pool

import outcore as oc
from outcore.errors import (
    ClosedError,
    ExistsError,
    InvalidError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
)
from outcore.pool.fsspec_filesystem import OutcoreFileSystem
from outcore.storage.whole_file import COPY_BYTES


@pytest.fixture
def pool() -> Iterator[oc.Pool]:
    with some_pool("embedded") as opened:
        yield opened


@pytest.fixture
def fs(pool: oc.Pool) -> OutcoreFileSystem:
    return OutcoreFileSystem(pool=pool)


def noise(count: int) -> bytes:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8).tobytes()


def test_listings_tell_what_stat_tells(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    begun = datetime.now(UTC)
    fs.makedirs("/d/e")
    fs.pipe_file("/d/f", b"12345")
    assert fs.ls("/d", detail=False) == ["/d/e", "/d/f"]
    assert fs.ls("", detail=False) == fs.ls("/", detail=False) == ["/d"]
    directory, file = fs.ls("/d")
    assert (directory["type"], directory["size"], file["type"], file["size"]) == (
        "directory", 0, "file", 5,
    )  # fmt: skip
    found = pool.stat("d/f")
    assert file["mode"] == stat.S_IFREG | found.mode
    assert stat.S_ISDIR(directory["mode"])
    assert (file["uid"], file["gid"]) == (found.owner, found.group) == (os.getuid(), os.getgid())
    assert file["servers"] == [0, 1] or file["servers"] == [1, 0]
    assert fs.info("/d/f") == file == fs.ls("/d/f")[0]
    assert fs.info("/")["type"] == "directory"
    assert begun - timedelta(seconds=1) <= fs.modified("/d/f") <= datetime.now(UTC)
    assert file["mtime"] == pytest.approx(fs.modified("/d/f").timestamp())
    assert (fs.isdir("/d"), fs.isfile("/d"), fs.isdir("/d/f"), fs.isfile("/d/f")) == (
        True, False, False, True,
    )  # fmt: skip
    assert (fs.exists("/d/f"), fs.exists("/d/f/g"), fs.exists("/x")) == (True, False, False)
    with pytest.raises(FileNotFoundError):
        fs.ls("/x")
    with pytest.raises(FileNotFoundError):
        fs.info("/x")


def test_trees_are_walked(fs: OutcoreFileSystem) -> None:
    files = ["/a/b/c.csv", "/a/b/d.txt", "/a/e.csv", "/f.csv"]
    for name in files:
        fs.pipe_file(name, name.encode())
    assert fs.find("/") == files
    assert fs.find("/a", withdirs=True) == ["/a", "/a/b", "/a/b/c.csv", "/a/b/d.txt", "/a/e.csv"]
    assert {name: info["size"] for name, info in fs.find("/a", detail=True).items()} == {
        name: len(name) for name in files[:3]
    }
    assert [(at, sorted(dirs), sorted(names)) for at, dirs, names in fs.walk("/a")] == [
        ("/a", ["b"], ["e.csv"]),
        ("/a/b", [], ["c.csv", "d.txt"]),
    ]
    assert fs.glob("/**/*.csv") == ["/a/b/c.csv", "/a/e.csv", "/f.csv"]
    assert fs.glob("/a/*") == ["/a/b", "/a/e.csv"]
    assert fs.du("/") == sum(map(len, files))
    assert fs.cat("/a/b/*") == {name: name.encode() for name in files[:2]}


def test_a_file_appears_when_it_is_closed(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    data = noise(300_000)
    with fs.open("/ckpt", "wb", block_size=65_536) as file:
        for at in range(0, len(data), 7001):
            file.write(data[at : at + 7001])
        # Most of the data are on the servers already.
        assert fs.ls("/") == []
        assert not fs.exists("/ckpt")
        assert len(pool.ls()) == 1
    assert pool.ls() == ["ckpt"]
    assert fs.cat_file("/ckpt") == data
    # Readers see the old file until the replacement is closed.
    with fs.open("/ckpt", "wb") as file:
        file.write(b"new")
        assert fs.cat_file("/ckpt") == data
    assert fs.cat_file("/ckpt") == b"new"


def test_what_is_left_by_an_exception_never_appears(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    fs.pipe_file("/ckpt", b"old")

    def write(opened: Any) -> None:
        with opened as file:
            file.write(bytes(100))
            _ = 1 / 0

    for compression in (None, "gzip", "bz2", "xz"):
        opened = fs.open("/ckpt", "wb", block_size=10, compression=compression)
        with pytest.raises(ZeroDivisionError):
            write(opened)
        assert opened.closed
        with pytest.raises(ValueError, match=r"mode|closed"):
            opened.write(b"more")

    def write_text(compression: str | None) -> None:
        with fs.open("/ckpt", "w", encoding="utf16", compression=compression) as file:
            file.write("text")
            _ = 1 / 0

    for compression in (None, "gzip"):
        with pytest.raises(ZeroDivisionError):
            write_text(compression)
    file = fs.open("/ckpt", "wb", block_size=10)
    file.write(bytes(100))
    with pytest.warns(RuntimeWarning, match="not closed"):
        del file
    assert (pool.ls(), fs.cat_file("/ckpt")) == (["ckpt"], b"old")


def test_a_write_that_fails_leaves_nothing(
    pool: oc.Pool, fs: OutcoreFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise oc.errors.DiskFullError("no room; free some")

    for call in (
        lambda: fs.pipe_file("/f", bytes(10)),
        lambda: fs.open("/f", "wb").close(),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(oc.PoolFile, "sync", fail)
            with pytest.raises(OSError, match="no room"):
                call()
        assert pool.ls() == []


def test_a_transaction_is_all_or_nothing(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    fs.pipe_file("/log", b"1")
    with fs.transaction:
        fs.pipe_file("/d/a", b"A")
        with fs.open("/b", "wb") as file:
            file.write(b"B")
        with fs.open("/log", "ab") as file:
            file.write(b"2")
        forgotten = fs.open("/c", "wb")
        forgotten.write(b"C")
        assert (fs.find("/"), fs.cat_file("/log")) == (["/log"], b"1")
    assert fs.cat(["/d/a", "/b", "/c", "/log"]) == {
        "/d/a": b"A", "/b": b"B", "/c": b"C", "/log": b"12",
    }  # fmt: skip

    def fail() -> None:
        with fs.transaction:
            fs.pipe_file("/b", b"other")
            with fs.open("/log", "ab") as file:
                file.write(b"3")
            with pytest.raises(InvalidError, match="transaction"):
                fs.open("/log", "r+b")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert fs.cat(["/b", "/log"]) == {"/b": b"B", "/log": b"12"}
    assert pool.ls() == ["b", "c", "d", "log"]


def test_modes(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    with fs.open("/f", "ab") as file:  # the file does not exist yet
        file.write(b"one ")
    with fs.open("/f", "ab") as file:
        assert file.tell() == 4
        file.write(b"two ")
        file.write(noise(50))
    assert fs.cat_file("/f") == b"one two " + noise(50)
    with fs.open("/f", "r+b") as file:
        file.seek(4)
        file.write(b"TWO")
        file.seek(0)
        assert file.read(8) == b"one TWO "
    with pytest.raises(FileExistsError, match="exists"):
        fs.open("/f", "xb")
    with fs.open("/g", "x") as text:
        text.write("größe\n")
        with pytest.raises(FileExistsError, match="being made"):
            fs.open("/g", "xb")
    assert fs.open("/g", "r", encoding="utf8").read() == "größe\n"
    with fs.open("/z", "wt", compression="gzip", newline="\r\n", encoding="latin1") as text:
        text.write("gezähmt\n")
    assert fs.read_text("/z", compression="gzip", encoding="latin1", newline="") == "gezähmt\r\n"
    fs.write_text("/z.bz2", "ü", compression="infer")
    assert fs.read_text("/z.bz2", compression="infer") == "ü"
    fs.rm("/z.bz2")
    assert fs.cat_file("/z")[:2] == b"\x1f\x8b"
    assert pool.ls() == ["f", "g", "z"]


def test_reading_by_pieces(fs: OutcoreFileSystem) -> None:
    data = noise(200_000)
    fs.pipe_file("/f", data)
    with fs.open("/f", "rb", block_size=1000) as file:
        assert isinstance(file, io.IOBase)
        assert file.size == len(data)
        assert (file.read(10), file.tell(), file.seek(-5, 2)) == (data[:10], 10, len(data) - 5)
        assert (file.read(), file.read()) == (data[-5:], b"")
        file.seek(1234)
        target = bytearray(4000)
        assert file.readinto(target) == 4000
        assert target == data[1234:5234]
        again = pickle.loads(pickle.dumps(file))
        assert (again.tell(), again.read(9)) == (5234, data[5234:5243])
    for start, end in [
        (None, None), (5, 9), (-5, None), (None, -199_990), (9, 5), (199_999, 300_000),
        (300_000, None), (-300_000, 3),
    ]:  # fmt: skip
        assert fs.cat_file("/f", start, end) == data[start:end], (start, end)
    assert fs.head("/f", 3) + fs.tail("/f", 3) == data[:3] + data[-3:]
    fs.pipe_file("/empty", b"")
    assert fs.cat_file("/empty") == fs.open("/empty").read() == b""


def test_ranges_of_a_file_are_one_request(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    data = noise(100_000)
    fs.pipe_file("/f", data, hints={"stripe_unit_bytes": 4096})
    fs.pipe_file("/g", b"short")
    starts = list(range(0, 90_000, 900))
    before = pool.messages
    found = fs.cat_ranges(["/f"] * 100, starts, [at + 11 for at in starts])
    assert pool.messages - before == 2 + 2  # the lengths of two data files, and the ranges
    assert found == [data[at : at + 11] for at in starts]
    parts = fs.cat_ranges(["/g", "/x", "/f", "/g"], [1, 0, 5, -2], [3, 9, 7, None])
    assert isinstance(parts.pop(1), FileNotFoundError)
    assert parts == [b"ho", data[5:7], b"rt"]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/x"], 0, 1, on_error="raise")
    with pytest.raises(InvalidError, match="as many"):
        fs.cat_ranges(["/f"], [0, 1], 1)


def test_copies_are_laid_out_as_the_file_is(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    data = noise(3 * COPY_BYTES + 12_345)
    fs.pipe_file("/f", data, hints={"stripe_unit_bytes": 4096, "stripe_count": 1})
    fs.cp_file("/f", "/d/g")
    assert fs.cat_file("/d/g") == data
    assert pool.stat("d/g").stripe_unit_bytes == 4096
    assert len(pool.stat("d/g").servers) == 1
    fs.cp("/d", "/e", recursive=True)
    assert fs.find("/") == ["/d/g", "/e/g", "/f"]
    fs.cp_file("/f", "/f")
    assert fs.cat_file("/f") == data
    with pytest.raises(FileNotFoundError):
        fs.cp_file("/x", "/y")
    assert pool.ls() == ["d", "e", "f"]


def test_renaming(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    fs.pipe({"/d/a": b"A", "/d/b": b"B", "/c": b"C"})
    before = pool.messages
    fs.mv("/d", "/e/f")
    assert pool.messages == before  # the data were not copied
    assert fs.find("/") == ["/c", "/e/f/a", "/e/f/b"]
    fs.mv("/c", "/e/f/a")
    assert fs.cat_file("/e/f/a") == b"C"
    fs.mv("/e/f/b", "/e")  # into a directory
    fs.mv("/e/f/*", "/new/")
    fs.mv("/e/b", "/e/b")
    assert fs.find("/") == ["/e/b", "/new/a"]
    fs.mv(["/e/b", "/new/a"], ["/b", "/a"])
    assert (fs.cat_file("/a"), fs.cat_file("/b")) == (b"C", b"B")
    with pytest.raises(FileNotFoundError):
        fs.mv("/x", "/y")
    with pytest.raises(InvalidError, match="pool itself"):
        fs.mv("/", "/y")


def test_removing(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    fs.pipe({"/d/a": b"", "/d/e/b": b"", "/c": b""})
    for call in (fs.rm_file, fs.rm):
        with pytest.raises(IsADirectoryError):
            call("/d")
        with pytest.raises(FileNotFoundError):
            call("/x")
    with pytest.raises(FileExistsError):
        fs.rmdir("/d")
    with pytest.raises(NotDirectoryError):
        fs.rmdir("/c")
    fs.rm(["/d/a", "/c"])
    fs.rm("/d/e/*")
    fs.rmdir("/d/e")
    fs.rm("/d", recursive=True)
    assert pool.ls() == []
    for call in (fs.rmdir, lambda name: fs.rm(name, recursive=True)):
        with pytest.raises(InvalidError, match="pool itself"):
            call("/")


def test_directories(fs: OutcoreFileSystem) -> None:
    fs.mkdir("/a/b")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    with pytest.raises(FileExistsError):
        fs.mkdir("/a")
    with pytest.raises(FileExistsError):
        fs.makedirs("/a")
    fs.makedirs("/a", exist_ok=True)
    fs.makedirs("/", exist_ok=True)
    fs.touch("/f")
    with pytest.raises(FileExistsError):
        fs.makedirs("/f", exist_ok=True)
    for call in (
        fs.open,
        fs.cat_file,
        lambda name: fs.open(name, "wb"),
        lambda name: fs.pipe_file(name, b""),
    ):
        with pytest.raises(IsDirectoryError):
            call("/a")
        with pytest.raises(IsADirectoryError):
            call("/")
    assert fs.find("/", withdirs=True) == ["/a", "/a/b", "/f"]
    for depth in (15, 16, 17, 31, 32, 33, 70):
        deep = "/" + "/".join(f"{depth}" for _ in range(depth))
        fs.makedirs(f"/deep{deep}")
        fs.pipe_file(f"{deep}/f", b"x")
        assert fs.isdir(f"/deep{deep}")
        assert fs.cat_file(f"{deep}/f") == b"x"


def test_changes_are_seen(pool: oc.Pool, fs: OutcoreFileSystem) -> None:
    fs.pipe_file("/f", b"one")
    keys = [(fs.ukey("/f"), fs.checksum("/f"))]
    assert keys == [(fs.ukey("/f"), fs.checksum("/f"))]
    modified = [fs.modified("/f")]
    changes = [
        lambda: fs.pipe_file("/f", b"two"),
        lambda: fs.touch("/f", truncate=False),
        lambda: pool.open("f", "r+").write(b"x"),
        lambda: fs.touch("/f"),
    ]
    for change in changes:
        size = fs.size("/f")
        change()
        keys.append((fs.ukey("/f"), fs.checksum("/f")))
        modified.append(fs.modified("/f"))
        assert fs.size("/f") in (size, 0)
    assert len({key for key, _ in keys}) == len({number for _, number in keys}) == len(keys)
    assert modified == sorted(modified)
    assert fs.size("/f") == 0


def test_a_file_system_is_its_pool(pool: oc.Pool, fs: OutcoreFileSystem, tmp_path: Path) -> None:
    location = fs.storage_options["location"]
    same = [
        OutcoreFileSystem(pool=pool), fsspec.filesystem("outcore", pool=pool),
        pickle.loads(pickle.dumps(fs)), fsspec.AbstractFileSystem.from_json(fs.to_json()),
        OutcoreFileSystem(directories=[location, tmp_path / "any"]),
    ]  # fmt: skip
    for other in same[:4]:
        assert (other, hash(other)) == (fs, hash(fs))
    with oc.Pool.embedded([tmp_path / "other"]) as elsewhere:
        assert OutcoreFileSystem(pool=elsewhere) != fs
        assert OutcoreFileSystem(pool=elsewhere).fsid != fs.fsid
        with pytest.raises(InvalidError, match="one pool"):
            OutcoreFileSystem(location, pool=elsewhere)
    fs.pipe_file("/f", b"x")
    assert [other.cat_file("/f") for other in same] == [b"x"] * 5


def test_urls(pool: oc.Pool, fs: OutcoreFileSystem, tmp_path: Path) -> None:
    url = fs.unstrip_protocol("/d/f")
    assert url == f"outcore://{fs.storage_options['location']}:/d/f"
    with fsspec.open(url, "w") as file:
        file.write("by URL")
    assert pool.ls("d") == ["f"]
    for name in (url, "/d/f", "d/f", str(pool / "d/f"), pool / "d/f", "outcore://d/f"):
        assert fs.cat_file(name) == b"by URL"
    found, path = fsspec.url_to_fs(url)
    assert (found, path) == (fs, "/d/f")
    with fsspec.open("outcore://d/f", pool=pool) as file:
        assert file.read() == b"by URL"
    mapping = fsspec.get_mapper(fs.unstrip_protocol("/m"))
    mapping["k/l"] = b"value"
    assert dict(mapping) == {"k/l": b"value"}
    with oc.Pool.embedded([tmp_path / "other"]) as elsewhere:
        with pytest.raises(InvalidError, match="another pool"):
            fs.cat_file(str(elsewhere / "f"))
        with pytest.raises(InvalidError, match="another pool"):
            fs.info(OutcoreFileSystem(pool=elsewhere).unstrip_protocol("f"))
    for text in ("outcore://d/f", "outcore:///d/f"):
        with pytest.raises(InvalidError, match="which pool"):
            fsspec.open(text)
    with pytest.raises(NotFoundError, match="neither a socket nor a directory"):
        fsspec.open(f"outcore://{tmp_path}/nowhere:/f")
    with pytest.raises(InvalidError, match="give one"):
        fsspec.open(url, directories=[tmp_path / "b"])
    with pytest.raises(InvalidError, match=r"\.\."):
        fs.cat_file("/../f")


def test_a_pool_that_is_closed_is_no_empty_one() -> None:
    with some_pool("embedded") as pool:
        fs = OutcoreFileSystem(pool=pool)
    for call in (fs.exists, fs.isfile, fs.isdir, fs.ls, fs.cat_file):
        with pytest.raises(ClosedError):
            call("/f")


def test_local_files_come_and_go(fs: OutcoreFileSystem, tmp_path: Path) -> None:
    data = noise(100_000)
    (tmp_path / "here").write_bytes(data)
    fs.put_file(tmp_path / "here", "/d/there")
    fs.get_file("/d/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(FileExistsError):
        fs.put_file(tmp_path / "here", "/d/there", mode="create")


def test_bad_arguments(fs: OutcoreFileSystem) -> None:
    with pytest.raises(InvalidError, match="at least 1"):
        fs.open("/f", "wb", block_size=0)
    with pytest.raises(NotImplementedError):
        fs.open("/f", "w+b")
    with pytest.raises(InvalidError, match="stripe_count"):
        fs.pipe_file("/f", b"", hints={"stripe_count": 0})
    with pytest.raises(NotFoundError):
        fs.open("/f")
    with pytest.raises(ExistsError):
        fs.mkdir("/")
    assert fs.ls("/") == []
