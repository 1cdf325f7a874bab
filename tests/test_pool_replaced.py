"""Files that are replaced while others read them: these find one of both, whole."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import fsspec
import pytest
from served_pools import some_pool

import outcore as oc
from outcore.errors import NotFoundError
from outcore.fsspec_filesystem import OutcoreFileSystem
from outcore.pool_path import PoolPath
from outcore.pool_reading import read_one, read_ranges
from outcore.whole_file import write_whole

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
            fs.rm("/f")
            with pytest.raises(NotFoundError, match="replaced or removed"):
                file.read(5)
        with pytest.raises(NotFoundError):
            fsspec.open("outcore://f", pool=pool).open()


@pytest.mark.parametrize("kind", ["embedded", "served"])
def test_what_is_open_and_removed_is_an_error_and_not_zeros(kind: str) -> None:
    with some_pool(kind) as pool:
        (pool / "f").write_bytes(VALUES[0])
        array = oc.create_array(pool / "A", (300, 200), "f8")
        array[...] = 1.0
        with pool.open("f") as file, oc.open_array(pool / "A") as opened:
            (pool / "f").write_bytes(VALUES[1])
            pool.rm("A", recursive=True)
            for read in (lambda: file.read_at(0, 10), file.readall, lambda: file.nbytes):
                with pytest.raises(NotFoundError, match="removed or replaced"):
                    read()
            with pytest.raises(NotFoundError, match="removed or replaced"):
                opened[:10, :10]
