"""Random operations that alternate between two mounts, compared with bytes in memory."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounted import mounted
from served import Served, serve

NAMES = "abcd"
OPERATIONS = 100
MOST_BYTES = 300_000


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("pool")) as served:
        yield served


def drawn_bytes(draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([1, 100, 5000, 70_000]))


def write(model: bytearray, at: int, data: bytes) -> None:
    """Write as pwrite does: bytes between the end and `at` are zeros."""
    model.extend(bytes(max(0, at + len(data) - len(model))))
    model[at : at + len(data)] = data


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.pread(fd, 1 << 20, sum(map(len, parts))):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_strict_mounts_are_one_file_system(pool: Served, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    files: dict[str, bytearray] = {}
    # Descriptors stay open: each reaches its file whatever happens to the name.
    open_files: list[tuple[int, bytearray]] = []
    with (
        mounted(pool, tmp_path / "one", "--strict") as one,
        mounted(pool, tmp_path / "two", "--strict") as two,
    ):
        (one.place / f"seed-{seed}").mkdir()
        roots = [each.place / f"seed-{seed}" for each in (one, two)]
        for number in range(OPERATIONS):
            here, there = roots[number % 2], roots[1 - number % 2]
            name, other = draw.choice(NAMES), draw.choice(NAMES)
            kind = draw.choice(
                ["open", "open", "write", "write", "append", "resize", "read", "rename", "remove",
                 "list", "close"]
            )  # fmt: skip
            if kind == "open":
                fd = os.open(here / name, os.O_RDWR | os.O_CREAT)
                open_files.append((fd, files.setdefault(name, bytearray())))
            elif kind == "rename" and name in files and name != other:
                drop(open_files, files.get(other))
                os.rename(here / name, here / other)
                files[other] = files.pop(name)
            elif kind == "remove" and name in files:
                # The other mount does not keep a file that this one removes.
                drop(open_files, files.pop(name))
                os.unlink(here / name)
            elif kind == "list":
                assert sorted(os.listdir(here)) == sorted(files)
                for each, content in files.items():
                    assert (there / each).stat().st_size == len(content)
            elif open_files:
                fd, content = open_files[draw.randrange(len(open_files))]
                if kind == "close":
                    open_files.remove((fd, content))
                    os.close(fd)
                else:
                    change(draw, kind, fd, content)
        for name, content in files.items():
            assert (roots[0] / name).read_bytes() == (roots[1] / name).read_bytes() == content
        for fd, _ in open_files:
            os.close(fd)


def drop(open_files: list[tuple[int, bytearray]], content: bytearray | None) -> None:
    """Close all descriptors of a file."""
    for each in [each for each in open_files if each[1] is content]:
        open_files.remove(each)
        os.close(each[0])


def change(draw: random.Random, kind: str, fd: int, content: bytearray) -> None:
    """Change or read an open file, and its model."""
    at = draw.randrange(MOST_BYTES)
    if kind == "write":
        data = drawn_bytes(draw)
        assert os.pwrite(fd, data, at) == len(data)
        write(content, at, data)
    elif kind == "append":
        data = drawn_bytes(draw)
        assert os.fstat(fd).st_size == len(content)
        os.pwrite(fd, data, len(content))
        content += data
    elif kind == "resize":
        os.ftruncate(fd, at)
        del content[at:]
        content.extend(bytes(at - len(content)))
    else:
        assert os.pread(fd, 50_000, at) == content[at : at + 50_000]
        assert read_all(fd) == content


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_mounts_see_each_other_after_a_close(pool: Served, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    files = {name: bytearray() for name in NAMES}
    with mounted(pool, tmp_path / "one") as one, mounted(pool, tmp_path / "two") as two:
        home = f"closed-{seed}"
        (one.place / home).mkdir()
        for name in NAMES:
            (one.place / home / name).touch()
        for number in range(OPERATIONS):
            name, place = draw.choice(NAMES), (one, two)[number % 2].place / home
            kind = draw.choice(["write", "write", "append", "resize", "read", "empty"])
            flags = os.O_RDWR | (os.O_APPEND if kind == "append" else 0)
            content = files[name]
            fd = os.open(place / name, flags | (os.O_TRUNC if kind == "empty" else 0))
            try:
                if kind == "empty":
                    content.clear()
                elif kind == "append":
                    data = drawn_bytes(draw)
                    os.write(fd, data)
                    content += data
                else:
                    for _ in range(draw.randrange(1, 4)):
                        change(draw, kind, fd, content)
                assert read_all(fd) == content
            finally:
                os.close(fd)


def test_a_program_that_opens_a_file_gets_its_length(pool: Served, tmp_path: Path) -> None:
    """Also within the second for which the kernel keeps the length that it got before."""

    def opened(path: Path) -> int:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size

    def copied_by_sendfile(path: Path) -> int:
        return Path(shutil.copyfile(path, tmp_path / path.name)).stat().st_size

    with mounted(pool, tmp_path / "one") as one, mounted(pool, tmp_path / "two") as two:
        for length_of in (opened, copied_by_sendfile):
            (one.place / length_of.__name__).write_bytes(b"short")
            assert (two.place / length_of.__name__).stat().st_size == 5
            (one.place / length_of.__name__).write_bytes(bytes(100_000))
            assert length_of(two.place / length_of.__name__) == 100_000
