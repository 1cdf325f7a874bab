"""Lost or truncated data files of a pool: an error, never zeros or a shorter file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pool_files import data_files, sums_of

import outcore as oc
from outcore.errors import CorruptError
from outcore.pool.fsck import fsck

LENGTH = 3_000_000
Places = list[Path]


def cut(path: Path, length: int = 1 << 19) -> None:
    os.truncate(path, length)


def lose(path: Path) -> None:
    path.unlink()
    sums_of(path).unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(sums_of(path), 0)


def made(tmp_path: Path, stripe_count: int, content: bytes) -> Places:
    """Make a pool of two servers with one synced file, and return its directories."""
    places = [tmp_path / "a", tmp_path / "b"]
    hints = {"stripe_count": stripe_count}
    with oc.Pool.embedded(places) as pool, pool.open("f", "w", hints=hints) as file:
        file.write(content)
        file.sync()
    return places


@pytest.mark.parametrize("damage", [cut, lose, empty])
@pytest.mark.parametrize("server", [0, 1])
def test_what_is_lost_is_an_error_and_found_by_fsck(
    tmp_path: Path, damage: Callable[[Path], None], server: int
) -> None:
    places = made(tmp_path, 2, os.urandom(LENGTH))
    (path,) = data_files(places[server])
    damage(path)
    with oc.Pool.embedded(places) as pool:
        with pytest.raises(CorruptError, match=f"server {server}"):
            pool.open("f").read()
        (finding,) = fsck(pool, patience_s=0.01).findings
        assert (finding.server, finding.path) == (server, "f")
        assert finding.kind == ("missing data" if damage is lose else "short data")


@pytest.mark.parametrize("damage", [lose, empty])
@pytest.mark.parametrize("content", [bytes(LENGTH), b"x" * 1000])
def test_a_file_on_one_server(
    tmp_path: Path, damage: Callable[[Path], None], content: bytes
) -> None:
    places = made(tmp_path, 1, content)
    (path,) = [*data_files(places[0]), *data_files(places[1])]
    damage(path)
    with oc.Pool.embedded(places) as pool:
        with pytest.raises(CorruptError, match=f"need {len(content)} bytes"):
            pool.open("f").read()
        assert len(fsck(pool, patience_s=0.01).findings) == 1


def test_what_was_never_written_reads_as_zeros(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    with oc.Pool.embedded(places) as pool, pool.open("f", "w", hints={"stripe_count": 2}) as file:
        file.write_at(2 << 20, b"end")
        file.sync()
    assert [len(data_files(place)) for place in places] in ([0, 1], [1, 0])
    with oc.Pool.embedded(places) as pool:
        assert pool.open("f").read() == bytes(2 << 20) + b"end"
        assert pool.open("f", "r+").nbytes == (2 << 20) + 3
        assert fsck(pool, patience_s=0.01).findings == ()


def test_files_that_were_shortened_made_longer_or_made_anew_are_good(tmp_path: Path) -> None:
    content = os.urandom(LENGTH)
    places = made(tmp_path, 2, content)
    with oc.Pool.embedded(places) as pool, pool.open("f", "r+") as file:
        file.truncate(10)
        file.sync()
    with oc.Pool.embedded(places) as pool:
        assert pool.open("f").read() == content[:10]
        with pool.open("f", "r+") as file:
            file.truncate(LENGTH)
            file.sync()
    with oc.Pool.embedded(places) as pool:
        assert pool.open("f").read() == content[:10] + bytes(LENGTH - 10)
        pool.rm("f")
        with pool.open("f", "w") as file:
            file.write(b"short")
            file.sync()
    with oc.Pool.embedded(places) as pool:
        assert pool.open("f").read() == b"short"
        assert fsck(pool, patience_s=0.01).findings == ()


@pytest.mark.parametrize("damage", [lose, empty])
def test_a_lost_file_can_be_written_anew_or_removed(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    places = made(tmp_path, 2, bytes(LENGTH))
    damage(data_files(places[1])[0])
    with oc.Pool.embedded(places) as pool:
        with pool.open("f", "w") as file:
            file.write(b"new")
            file.sync()
        assert pool.open("f").read() == b"new"
        pool.rm("f")
    with oc.Pool.embedded(places) as pool:
        assert fsck(pool, patience_s=0.01).findings == ()


def test_an_array_that_lost_a_part_is_not_opened(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    chunks = (100, 100)
    with (
        oc.Pool.embedded(places) as pool,
        oc.create_array(pool / "A", (600, 600), "f8", chunks=chunks) as A,
    ):
        A[:] = 1.0
    path = max(data_files(places[1]), key=lambda path: path.stat().st_size)
    lose(path)
    with oc.Pool.embedded(places) as pool, pytest.raises(CorruptError, match="server 1"):
        oc.open_array(pool / "A")[:]
