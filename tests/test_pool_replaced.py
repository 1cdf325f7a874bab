"""Files that are replaced while clients read them: a reader gets one of both, whole."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import fsspec
import pytest
from served_pools import some_pool

import outcore as oc
from outcore.errors import NotFoundError
from outcore.pool.fsspec_filesystem import OutcoreFileSystem
from outcore.storage import whole_file
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_reading import read_one, read_ranges
from outcore.storage.whole_file import write_whole

VALUES = [bytes([number]) * 150_000 for number in range(1, 9)]
ENDS = [(0, 9), (149_991, 150_000)]


@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_readers_find_the_old_file_or_the_new_one(kind: str) -> None:
    over = Event()

    def replace(path: PoolPath) -> None:
        for value in VALUES * 12:
            path.write_bytes(value)
            write_whole(path, value)
        over.set()

    def read(path: PoolPath) -> int:
        times = 0
        while not over.is_set():
            assert path.read_bytes() in VALUES
            first, last = read_one(path, lambda file: read_ranges(file, ENDS))
            assert first.tobytes() == last.tobytes()
            assert first[0] > 0
            times += 1
        return times

    with some_pool(kind) as pool, ThreadPoolExecutor(3) as threads:
        path = pool / "f"
        path.write_bytes(VALUES[0])
        readers = [threads.submit(read, path) for _ in range(2)]
        threads.submit(replace, path).result()
        assert all(reader.result() > 5 for reader in readers)


def test_a_file_that_is_open_is_not_the_one_that_replaces_it() -> None:
    with some_pool("embedded") as pool:
        fs = OutcoreFileSystem(pool=pool)
        fs.pipe_file("/f", VALUES[0])
        with fs.open("/f", "rb", cache_type="none") as file:
            assert file.read(5) == VALUES[0][:5]
            fs.pipe_file("/f", VALUES[1])
            with pytest.raises(NotFoundError, match="replaced or removed"):
                file.read(5)
        with fs.open("/f", "rb", cache_type="none") as file:
            # The handle keeps its file even if the caller asked only for its length.
            file.seek(0, 2)
            fs.pipe_file("/f", VALUES[2])
            file.seek(0)
            with pytest.raises(NotFoundError, match="replaced or removed"):
                file.read(5)
        with fs.open("/f", "rb", cache_type="none") as file:
            fs.rm("/f")
            with pytest.raises(NotFoundError, match="replaced or removed"):
                file.read(5)
        with pytest.raises(NotFoundError):
            fsspec.open("outcore://f", pool=pool).open()


READS: dict[str, Callable[[oc.PoolFile], object]] = {
    "read": lambda file: file.read(),
    "readall": lambda file: file.readall(),
    "readinto": lambda file: _into(file),
    "readline": lambda file: file.readline(),
    "read1": lambda file: file.read1() + file.read(),
    "lines": lambda file: b"".join(file),
    "end": lambda file: bytes(file.seek(-1, 2) + 1 - len(file.read())) or b"",
    "read_at": lambda file: file.read_at(0, file.nbytes).tobytes(),
    "list": lambda file: file.read_list([0, 5], 5).tobytes(),
    "view": lambda file: file.view(0, 5, 5).read_at(0, 10).tobytes(),
}


def _into(file: oc.PoolFile) -> bytes:
    buffer = bytearray(1000)
    return bytes(buffer[: file.readinto(buffer)])


@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_a_file_that_is_replaced_before_it_is_read_is_the_new_one(kind: str) -> None:
    """Replace it at each moment between opening and first byte."""
    old, new = b"old: 5678\n", b"new: some more bytes\n"
    with some_pool(kind) as pool:
        path = pool / "f"
        for name, read in READS.items():
            path.write_bytes(new)
            expected = read(pool.open("f"))
            for is_renamed in (False, True):
                path.write_bytes(old)
                (pool / "g").write_bytes(new)
                with pool.open("f") as file:
                    if is_renamed:
                        pool.mv("g", "f")
                    else:
                        path.write_bytes(new)
                    assert read(file) == expected, name
                    # The handle now belongs to the new file.
                    path.write_bytes(old)
                    with pytest.raises(NotFoundError, match="removed or replaced"):
                        file.read_at(0, 1)


@pytest.mark.parametrize("cache_type", ["readahead", "none", "bytes", "all"])
def test_fsspec_reads_the_file_that_replaced_another_before_it_was_read(cache_type: str) -> None:
    with some_pool("embedded") as pool:
        fs = OutcoreFileSystem(pool=pool)
        for size in (10, 200_000, 100):
            fs.pipe_file("/f", VALUES[0])
            file = fs.open("/f", "rb", cache_type=cache_type)
            if cache_type != "all":  # that cache type reads the file as it opens it
                fs.pipe_file("/f", bytes([9]) * size)
                assert file.read() == bytes([9]) * size
                assert file.size == size
            file.close()
            fs.pipe_file("/f", VALUES[0])
            with fs.open("/f", "rb", cache_type=cache_type) as file:
                fs.pipe_file("/new", VALUES[1])
                fs.mv("/new", "/f")
                file.seek(149_000)
                expected = VALUES[cache_type != "all"][149_000:]
                assert file.read() == expected


def test_a_file_is_opened_again_only_if_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with some_pool("embedded") as pool:
        for reading in (lambda f: f.read(), lambda f: f.nbytes, lambda f: f.read_at(0, 1)):
            (pool / "f").write_bytes(VALUES[0])
            with pool.open("f") as file:
                pool.rm("f")
                with pytest.raises(NotFoundError, match="removed or replaced"):
                    reading(file)
        (pool / "f").write_bytes(VALUES[0])
        with pool.open("f", "r+") as file:
            (pool / "f").write_bytes(VALUES[1])
            with pytest.raises(NotFoundError, match="removed or replaced"):
                file.read()
        with pool.open("f") as file:
            assert file.start_read_at(0, 1).result()[0] == VALUES[1][0]
            (pool / "f").write_bytes(VALUES[2])
            with pytest.raises(NotFoundError, match="removed or replaced"):
                file.read()


def test_a_copy_is_of_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the source after the copy of its first block."""
    monkeypatch.setattr(whole_file, "COPY_BYTES", 50_000)
    with some_pool("embedded") as pool:
        path, write = pool / "f", oc.PoolFile.start_write
        path.write_bytes(VALUES[0])
        left = [VALUES[1][:70_000]]

        def start_write(file: oc.PoolFile, *arguments: object) -> object:
            started = write(file, *arguments)  # type: ignore[arg-type]
            if left and "copy" in file.name:
                value = left.pop()
                path.write_bytes(value)
            return started

        monkeypatch.setattr(oc.PoolFile, "start_write", start_write)
        whole_file.copy_whole(path, pool / "copy")
        assert (pool / "copy").read_bytes() == VALUES[1][:70_000]
        assert not left


@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_what_is_open_and_removed_is_an_error_and_not_zeros(kind: str) -> None:
    with some_pool(kind) as pool:
        (pool / "f").write_bytes(VALUES[0])
        array = oc.create_array(pool / "A", (300, 200), "f8")
        array[...] = 1.0
        with pool.open("f") as file, oc.open_array(pool / "A") as opened:
            assert file.read(1) == VALUES[0][:1]
            (pool / "f").write_bytes(VALUES[1])
            pool.rm("A", recursive=True)
            for read in (lambda: file.read_at(0, 10), file.readall, lambda: file.nbytes):
                with pytest.raises(NotFoundError, match="removed or replaced"):
                    read()
            with pytest.raises(NotFoundError, match="removed or replaced"):
                opened[:10, :10]
