"""Copies of files from and to pools: equal bytes and attributes, refusals, and leftovers."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore.errors import (
    BudgetError,
    CorruptError,
    DiskFullError,
    ExistsError,
    InvalidError,
    NotFoundError,
    OutcoreError,
)
from outcore.files import catalog, copy_job, ends, file_copy, pieces
from outcore.files.copy import copy_files
from outcore.files.move import move_files
from outcore.storage.file_status import status_of, walk
from outcore.storage.volumes import AnyPath, exclusive, place

PIECE = 64 << 10


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, copy_job, file_copy):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "c"]) as opened:
        yield opened


def noise(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def copy(sources: Any, target: Any, **options: Any) -> list[Any]:
    return copy_files(sources, target, progress=False, **options)


def content(top: AnyPath) -> dict[str, bytes | None]:
    """Return the tree below a directory: bytes of files, `None`, or targets of links."""
    found: dict[str, bytes | None] = {}
    for each in walk(status_of(top)):
        name = str(each.path)[len(str(top)) :].strip("/")
        if each.target is not None:
            found[name] = each.target.encode()
        else:
            found[name] = None if each.is_directory else each.path.read_bytes()
    return found


def names(directory: AnyPath) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def make_tree(top: Path) -> Path:
    sizes = {"empty": 0, "one": 1, "d/page": 4096, "d/odd": PIECE + 4097, "d/e/long": 5 * PIECE}
    for seed, (name, nbytes) in enumerate(sizes.items()):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(noise(nbytes, seed))
    (top / "d/nothing").mkdir()
    (top / ".hidden").write_bytes(b"h")
    return top


@pytest.mark.parametrize(
    "nbytes", [0, 1, 4095, 4096, PIECE - 1, PIECE, PIECE + 1, 7 * PIECE + 4097]
)
def test_bytes_go_there_and_back(
    pool: oc.Pool, other: oc.Pool, tmp_path: Path, nbytes: int
) -> None:
    data = noise(nbytes)
    (tmp_path / "f").write_bytes(data)
    (report,) = copy(tmp_path / "f", pool / "x/f", memory=3 * PIECE)
    assert (report.nbytes, report.files, report.directories) == (nbytes, 1, 0)
    assert not report.verified
    copy(pool / "x/f", other / "g", hints={"striping_unit": 8192}, verify=True)
    assert other.stat("g").stripe_unit_bytes == 8192
    (report,) = copy(other / "g", tmp_path / "back")
    assert report.verified
    assert (tmp_path / "back").read_bytes() == data
    assert names(pool / "x") == ["f"]
    assert names(other / "") == ["g"]
    assert not [name for name in names(tmp_path) if "copying" in name]


def test_a_tree_goes_there_and_back(pool: oc.Pool, other: oc.Pool, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    copy(tree, pool / "t", recursive=True)
    copy(pool / "t", other / "t", recursive=True)
    (report,) = copy(other / "t", tmp_path / "back", recursive=True)
    assert content(tmp_path / "back") == content(tree)
    assert (report.files, report.directories) == (6, 4)
    # An existing directory takes one or several copies under their own names.
    pool.mkdir("into")
    copy([tree / "one", tree / "d"], pool / "into", recursive=True)
    assert pool.ls("into") == ["d", "one"]
    (tmp_path / "here").mkdir()
    copy(pool / "into" / "*", tmp_path / "here", recursive=True)
    assert content(tmp_path / "here" / "d") == content(tree / "d")
    with pytest.raises(InvalidError, match="need a directory"):
        copy([tree / "one", tree / "empty"], pool / "none")


def test_from_one_pool_to_another_the_stripe_unit_stays(pool: oc.Pool, other: oc.Pool) -> None:
    with pool.open("f", "w", hints={"striping_unit": 12_000}) as file:
        file.write(noise(50_000))
    copy(pool / "f", other / "f")
    assert other.stat("f").stripe_unit_bytes == 12_000


def test_a_file_that_was_renamed_is_not_taken_to_be_changed(pool: oc.Pool) -> None:
    with pool.open("f", "w") as file:
        file.write(b"x")
        pool.mv("f", "g")
        # The client reports its writes before any listing, under any name.
        pool.core.tell_written()
        (before,) = [found for path, found in (pool / "").scandir() if path.name == "g"]
        assert (pool / "").root.volume.modified_ns("g") == before.modified_ns
        copy(pool / "g", pool / "h")


def test_what_is_preserved(pool: oc.Pool, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    os.chmod(tree / "one", 0o751)
    os.chmod(tree / "empty", 0o400)
    os.setxattr(tree / "one", "user.colour", b"red\0")
    os.setxattr(tree / "d", "user.of", b"directory")
    for name in ("one", "d/page", "d/e", "d", ""):
        os.utime(tree / name, ns=(1, 1_500_000_000_123_456_789 + len(name)))
    copy(tree, pool / "t", recursive=True, preserve=True)
    assert pool.getxattr("t/one", "colour") == b"red\0"
    found = pool.stat("t/one")
    assert (found.mode, found.modified_ns) == (0o751, 1_500_000_000_123_456_792)
    copy(pool / "t", tmp_path / "back", recursive=True, preserve=True)
    for each in [status_of(tree), *walk(status_of(tree))]:
        assert not isinstance(each.path, oc.PoolPath)
        back = status_of(tmp_path / "back" / each.path.relative_to(tree))
        assert (back.mode, back.owner, back.group) == (each.mode, each.owner, each.group)
        assert back.modified_ns == each.modified_ns, each.path
    assert os.getxattr(tmp_path / "back/one", "user.colour") == b"red\0"
    assert os.getxattr(tmp_path / "back/d", "user.of") == b"directory"


def test_a_plain_copy_has_the_mode_that_cp_gives(pool: oc.Pool, tmp_path: Path) -> None:
    for mode in (0o644, 0o755, 0o600, 0o4751, 0o444, 0o666):
        source = tmp_path / f"{mode:o}"
        source.write_bytes(b"x")
        os.chmod(source, mode)
        subprocess.run(["cp", source, tmp_path / "theirs"], check=True)
        expected = stat.S_IMODE((tmp_path / "theirs").stat().st_mode)
        copy(source, pool / source.name)
        assert pool.stat(source.name).mode == expected
        copy(pool / source.name, tmp_path / "ours")
        assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == expected
        (tmp_path / "theirs").unlink()
        (tmp_path / "ours").unlink()


def test_holes_stay_holes(pool: oc.Pool, tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.truncate(100 * PIECE)
        file.seek(50 * PIECE)
        file.write(b"data")
    copy(tmp_path / "f", pool / "f")
    copy(pool / "f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == (tmp_path / "f").read_bytes()
    assert (tmp_path / "g").stat().st_blocks * 512 <= 4 * PIECE
    data = [path for path in (tmp_path / "a/data").rglob("*") if path.stat().st_size > 40 * PIECE]
    assert data
    assert all(path.stat().st_blocks * 512 < 10 * PIECE for path in data)


def test_an_array_is_copied_without_being_asked_for_a_tree(pool: oc.Pool, tmp_path: Path) -> None:
    a = np.random.default_rng(0).random((200, 100))
    oc.from_array(a, tmp_path / "A", chunks=(64, 64), progress=False).close()
    copy(tmp_path / "A", pool / "A")
    with oc.open_array(pool / "A") as found:
        assert (found[...] == a).all()
    # An array is a directory, but a copy never goes into it.
    with pytest.raises(ExistsError, match="overwrite"):
        copy(tmp_path / "A", pool / "A")
    oc.from_array(-a, tmp_path / "B", chunks=(200, 10), progress=False).close()
    copy(tmp_path / "B", pool / "A", if_exists="overwrite")
    with oc.open_array(pool / "A") as found:
        assert (found[...] == -a).all()
    assert names(pool / "") == ["A"]
    copy(pool / "A", tmp_path / "A", if_exists="overwrite")
    with oc.open_array(tmp_path / "A") as found:
        assert (found[...] == -a).all()
    assert oc.verify(tmp_path / "A", progress=False).checksums == "none"


def test_the_metadata_of_an_array_comes_last(
    pool: oc.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "G"
    oc.create_group(group)
    for name in "AB":
        oc.from_array(np.ones((300, 100)), group / name, progress=False).close()
    opened: list[str] = []
    open_target = ends.open_target

    def opening(path: AnyPath, *arguments: Any, **options: Any) -> Any:
        opened.append(str(path).partition("content/")[2])
        return open_target(path, *arguments, **options)

    monkeypatch.setattr(file_copy, "open_target", opening)
    copy(group, pool / "G", memory=PIECE)
    metadata = [name.endswith("zarr.json") for name in opened]
    assert metadata == sorted(metadata), "after all shard files"
    assert opened[-1] == "zarr.json", "that of the group at the end"


def test_what_cannot_be_copied_is_refused_and_leaves_nothing(pool: oc.Pool, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    before = content(tmp_path)
    with pytest.raises(NotFoundError):
        copy(tmp_path / "none", pool / "f")
    with pytest.raises(NotFoundError):
        copy(pool / "none", tmp_path / "f")
    with pytest.raises(NotFoundError, match="nothing matches"):
        copy(pool / "n*", tmp_path / "f")
    with pytest.raises(NotFoundError, match="make it first"):
        copy(tree / "one", tmp_path / "no/where")
    with pytest.raises(InvalidError, match="recursive=True"):
        copy(tree, pool / "t")
    with pytest.raises(InvalidError, match="into itself"):
        copy(tree, tree / "d/inside", recursive=True)
    with pytest.raises(InvalidError, match="into itself"):
        copy(tree / "one", tree / "one")
    with pytest.raises(InvalidError, match="no name of its own"):
        copy(pool / "", tmp_path, recursive=True)
    with pytest.raises(BudgetError, match="need 64 KiB"):
        copy(tree / "one", pool / "f", memory=PIECE - 1)
    (tmp_path / "file").write_bytes(b"there")
    with pytest.raises(ExistsError, match="if_exists='overwrite'"):
        copy(tree / "one", tmp_path / "file")
    (tmp_path / "file").unlink()
    (tmp_path / "d").mkdir()
    with pytest.raises(ExistsError, match="no array"):
        copy(tree / "d", tmp_path, recursive=True, if_exists="overwrite")
    (tmp_path / "d").rmdir()
    pool.mkdir("t")
    copy(tree / "one", pool / "t")
    with pytest.raises(ExistsError):
        copy(tree / "one", pool / "t")
    assert content(tmp_path).keys() - before.keys() <= {
        name for name in content(tmp_path) if name.startswith(("a/", "b/")) or name in "ab"
    }
    (tree / "link").symlink_to("one")
    with pytest.raises(InvalidError, match="is a link"):
        copy(tree, pool / "u", recursive=True, links="refuse")
    (tree / "link").unlink()
    os.mkfifo(tree / "fifo")
    with pytest.raises(InvalidError, match="fifo is no file"):
        copy(tree, pool / "u", recursive=True)
    (tree / "fifo").unlink()
    odd = os.fsencode(tree) + b"/\xff"
    Path(os.fsdecode(odd)).touch()
    with pytest.raises(InvalidError, match="UTF-8"):
        copy(tree, pool / "u", recursive=True)
    assert pool.ls() == ["t"]


def test_a_link_to_a_file_that_is_named_is_followed(pool: oc.Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    (tmp_path / "link").symlink_to("f")
    copy(tmp_path / "link", pool / "f")
    assert (pool / "f").read_bytes() == b"content"


def test_a_source_that_changes_is_noticed(
    pool: oc.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(noise(4 * PIECE))
    move = copy_job._move

    def moving(*arguments: Any, **options: Any) -> int:
        with source.open("r+b") as file:
            file.write(b"changed")
        return move(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(copy_job, "_move", moving)
        with pytest.raises(InvalidError, match="changed while it was copied"):
            copy(source, pool / "f")
    assert pool.ls() == [".f.copying"]
    copy(source, pool / "f", resume=True)
    assert (pool / "f").read_bytes() == source.read_bytes()


def test_a_source_that_shrinks_is_noticed(
    pool: oc.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(noise(4 * PIECE))
    read = ends.PlainEnd.read

    def reading(self: ends.PlainEnd, at: int, piece: memoryview) -> None:
        os.truncate(source, PIECE)
        read(self, at, piece)

    monkeypatch.setattr(ends.PlainEnd, "read", reading)
    with pytest.raises(OutcoreError, match="changed while it was copied"):
        copy(source, pool / "f")


@pytest.mark.parametrize("to_pool", [False, True])
def test_what_was_not_written_as_it_was_read_is_found(
    pool: oc.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_pool: bool
) -> None:
    data = noise(5 * PIECE)
    (tmp_path / "f").write_bytes(data)
    target = pool / "g" if to_pool else tmp_path / "g"
    end = ends.PoolEnd if to_pool else ends.PlainEnd
    write = end.write

    def writing(self: Any, at: int, piece: memoryview) -> None:
        spoiled = bytearray(piece)
        if at == 2 * PIECE:
            spoiled[77] ^= 1
        write(self, at, memoryview(spoiled))

    with monkeypatch.context() as patch:
        patch.setattr(end, "write", writing)
        with pytest.raises(CorruptError, match=f"from {2 * PIECE} on"):
            copy(tmp_path / "f", target, verify=True)
    assert not target.exists()
    (report,) = copy(tmp_path / "f", target, resume=True, verify=True)
    assert report.resumed_bytes == 4 * PIECE, "all but the piece that is wrong"
    assert status_of(target).mode == 0o644
    assert target.read_bytes() == data


def test_zeros_replace_what_a_stopped_copy_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(PIECE) + bytes(PIECE)
    (tmp_path / "f").write_bytes(data)

    def failing(*_: object) -> None:
        raise CorruptError("it cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(copy_job.CopyJob, "_verify_piece", failing)
        with pytest.raises(CorruptError):
            copy(tmp_path / "f", tmp_path / "g")
    with (tmp_path / ".g.copying/content").open("r+b") as file:
        file.seek(PIECE + 100)
        file.write(b"torn")
    copy(tmp_path / "f", tmp_path / "g", resume=True)
    assert (tmp_path / "g").read_bytes() == data


def test_a_full_disk_leaves_what_can_go_on(pool: oc.Pool, tmp_path: Path, small_disk: Path) -> None:
    data = noise(80 << 20)
    (tmp_path / "f").write_bytes(data)
    copy(tmp_path / "f", pool / "f")
    with pytest.raises(DiskFullError, match="resume=True") as error:
        copy(pool / "f", small_disk / "f")
    assert str(error.value).count("\n") == 0
    assert names(small_disk) == [".f.copying", "lost+found"]
    entry = catalog.recognise(small_disk / ".f.copying")
    assert entry is not None
    assert "--resume" in entry.text
    with pytest.raises(ExistsError, match="stopped before"):
        copy(pool / "f", small_disk / "f")
    with pytest.raises(DiskFullError):
        copy(pool / "f", small_disk / "f", resume=True)
    catalog.remove(entry)
    with pool.open("f", "r+") as file:
        file.truncate(20 << 20)
    copy(pool / "f", small_disk / "f")
    assert (small_disk / "f").read_bytes() == data[: 20 << 20]


def test_a_full_pool_leaves_what_can_go_on(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "f").write_bytes(noise(80 << 20))
    with oc.Pool.embedded([tmp_path / "a", small_disk / "b"]) as pool:
        with pytest.raises(DiskFullError, match="resume=True"):
            copy(tmp_path / "f", pool / "f", hints={"base": 1, "stripe_count": 1})
        assert pool.ls() == [".f.copying"]
        os.truncate(tmp_path / "f", 20 << 20)
        (report,) = copy(tmp_path / "f", pool / "f", resume=True)
        assert report.resumed_bytes == 0, "the source is another now"
        assert (pool / "f").read_bytes() == (tmp_path / "f").read_bytes()


def test_a_place_is_copied_to_by_one_at_a_time(pool: oc.Pool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for target in (pool / "g", tmp_path / "g"):
        working = target.with_name(".g.copying")
        with exclusive(place(working), "copying"), pytest.raises(OSError, match="in use"):
            copy(tmp_path / "f", target, resume=True)


def test_moving_within_and_between(pool: oc.Pool, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    before = content(tree)
    move_files(tree, pool / "t", progress=False)
    assert not tree.exists()
    pool.mkdir("d")
    move_files(pool / "t", pool / "d", progress=False)
    assert pool.ls() == ["d"]
    assert move_files(pool / "d/*", pool / "u", progress=False) == [(pool / "d/t", pool / "u")]
    move_files(pool / "u", tree, progress=False)
    assert content(tree) == before
    assert pool.ls() == ["d"]
    move_files(tree / "one", tmp_path / "one", progress=False)
    with pytest.raises(ExistsError):
        move_files(tree / "d/page", tmp_path / "one", progress=False)
    move_files(tree / "d/page", tmp_path / "one", if_exists="overwrite", progress=False)
    assert (tmp_path / "one").read_bytes() == before["d/page"]
    with pytest.raises(InvalidError, match="into itself"):
        move_files(pool / "d", pool / "d/e/f", progress=False)
    with pytest.raises(InvalidError, match="pool itself"):
        move_files(pool / "", tmp_path / "all", progress=False)
    with pytest.raises(NotFoundError):
        move_files(pool / "none", pool / "x", progress=False)


def test_an_array_takes_the_place_of_another_by_moving(pool: oc.Pool, tmp_path: Path) -> None:
    for where in (pool / "", tmp_path / "plain"):
        for name, value in [("A", 1.0), ("B", 2.0)]:
            oc.from_array(np.full(10, value), where / name, progress=False).close()
        move_files(where / "B", where / "A", if_exists="overwrite", progress=False)
        assert names(where) == ["A"]
        with oc.open_array(where / "A") as found:
            assert (found[...] == 2).all()


@pytest.mark.parametrize("on_disk", [False, True])
def test_nothing_is_moved_to_itself_through_a_link(
    pool: oc.Pool, tmp_path: Path, on_disk: bool
) -> None:
    top: Any = tmp_path / "plain" if on_disk else pool / "top"
    oc.from_array(np.full(10, 1.0), top / "d/A", progress=False).close()
    (top / "d/f").write_bytes(b"content")
    (top / "l").symlink_to("d")
    (top / "d/up").symlink_to("../l")
    (top / "toA").symlink_to("d/A")
    (top / "d/tof").symlink_to("f")
    before = content(top)
    metadata = "zarr.json"
    for source, target in (
        ("d/A", "l"), ("d/A", "l/A"), ("l/A", "d"), ("d/A", "d/up/up/A"), ("d/A", "toA/B"),
        ("d/f", "l"), ("l/f", "d/f"), ("d/tof", "l/tof"), ("d", "l/d"),
        (f"d/A/{metadata}", "d/A"), (f"d/A/{metadata}", "l/A"), (f"toA/{metadata}", "l/A"),
        ("toA", "d/A"), ("toA", "l/A"), ("d/tof", "l/f"),
    ):  # fmt: skip
        with pytest.raises(InvalidError, match=r"itself|cannot replace it"):
            move_files(top / source, top / target, if_exists="overwrite", progress=False)
        assert content(top) == before, (source, target)
    with oc.open_array(top / "l/A") as found:
        assert (found[...] == 1).all()
    # As with GNU mv, a file replaces a link to itself.
    move_files(top / "d/f", top / "d/tof", if_exists="overwrite", progress=False)
    assert not (top / "d/tof").is_symlink()
    assert (top / "d/tof").read_bytes() == b"content"
    move_files(top / "l/A", top, progress=False)
    assert "A" in names(top)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_copy_of_a_link_does_not_replace_its_target(
    pool: oc.Pool, tmp_path: Path, on_disk: bool
) -> None:
    top: Any = tmp_path / "plain" if on_disk else pool / "top"
    oc.from_array(np.full(10, 1.0), top / "d/A", progress=False).close()
    (top / "d/f").write_bytes(b"content")
    (top / "l").symlink_to("d")
    (top / "toA").symlink_to("d/A")
    (top / "tof").symlink_to("d/f")
    before = content(top)
    for source, target in (("toA", "d/A"), ("toA", "l/A"), ("tof", "l/f")):
        with pytest.raises(InvalidError, match="cannot replace it"):
            copy(top / source, top / target, recursive=True, if_exists="overwrite")
        assert content(top) == before
