"""Checking a pool: fsck finds each kind of damage, made by hand, and repairs on request only."""

import json
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from metadata_store import opened, put
from pool_files import data_files, sums_of, with_handle

import outcore as oc
from outcore._core import Stripes
from outcore.cli import main
from outcore.pool import fsck as pool_fsck
from outcore.pool.fsck import FsckReport, fsck

UNIT = 64 << 10
Places = list[Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return the directories of a pool of two servers.

    Its files lie on both servers or on one, are removed, or are empty.
    """
    directories = [tmp_path / "a", tmp_path / "b"]
    with oc.Pool.embedded(directories) as pool:
        for name, hints in (
            ("d/both", {"stripe_unit_bytes": UNIT}),
            ("d/first", {"stripe_count": 1, "base": 0}),
            ("second", {"stripe_count": 1, "base": 1}),
            ("removed", {}),
        ):
            with pool.open(name, "w", hints=hints) as file:
                file.write(bytes(range(256)) * (5 * UNIT // 256))
        pool.rm("removed")
        pool.open("empty", "w").close()
    return directories


def check(places: Places, *, repair: bool = False) -> FsckReport:
    with oc.Pool.embedded(places) as pool:
        return fsck(pool, repair=repair, patience_s=0.01)


def kinds(report: FsckReport) -> list[tuple[str, int | None, str | None]]:
    return [(finding.kind, finding.server, finding.path) for finding in report.findings]


def everything(places: Places) -> dict[Path, bytes]:
    """Return the contents of the data files and checksum files."""
    files = (path for place in places for path in place.glob("data/*/*"))
    return {path: path.read_bytes() for path in files}


def handles(places: Places) -> dict[str, int]:
    """Return the handles by name, from the metadata."""
    with opened(places[0]) as store:
        rows = store.execute("SELECT key, value FROM entries WHERE substr(key, 1, 1) = x'6e'")
        return {key[9:].decode(): struct.unpack("<Q", value[1:])[0] for key, value in rows}


def edit(places: Places, handle: int, change: Callable[[bytes], tuple[bytes, bytes]]) -> None:
    """Change the record of a file: `change` maps its value to another key's letter and value."""
    with opened(places[0]) as store:
        key = b"i" + struct.pack(">Q", handle)
        value, version = store.execute(
            "SELECT value, version FROM entries WHERE key = ?", (key,)
        ).fetchone()
        letter, value = change(value)
        store.execute("DELETE FROM entries WHERE key = ?", (key,))
        put(store, letter + key[1:], value, version)


def copy_data(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    shutil.copy(source, target)
    shutil.copy(sums_of(source), sums_of(target))


def test_a_pool_that_is_well(places: Places) -> None:
    before = everything(places)
    for repair in (False, True):
        report = check(places, repair=repair)
        assert report.findings == ()
        assert (report.servers, report.files, report.data_files) == (2, 4, 4)
    assert everything(places) == before


def test_stray_data_is_removed_when_told_and_not_before(places: Places) -> None:
    gone = max(handles(places).values()) + 1
    owned = everything(places)
    copy_data(data_files(places[1])[0], with_handle(places[1], gone))
    # The rest of a removal that a crash interrupted.
    lone = with_handle(places[0], gone + 1)
    lone.parent.mkdir(exist_ok=True)
    sums_of(lone).write_bytes(b"")
    before = everything(places)
    report = check(places)
    assert kinds(report) == [("stray data", 0, None), ("stray data", 1, None)]
    assert [finding.repair for finding in report.findings] == ["remove the data file"] * 2
    assert everything(places) == before, "nothing is done unasked"
    report = check(places, repair=True)
    assert len(report.findings) == 2
    assert report.unrepaired == ()
    assert everything(places) == owned
    assert check(places).findings == ()


def test_data_that_a_newer_copy_of_the_metadata_may_own_is_left(places: Places) -> None:
    copy_data(data_files(places[0])[0], with_handle(places[0], 1 << 40))
    before = everything(places)
    report = check(places, repair=True)
    assert kinds(report) == [("newer data", 0, None)]
    assert len(report.unrepaired) == 1
    assert everything(places) == before


def test_data_on_a_server_that_a_file_is_not_on(places: Places) -> None:
    handle = handles(places)["first"]
    copy_data(with_handle(places[0], handle), with_handle(places[1], handle))
    before = everything(places)
    assert kinds(check(places, repair=True)) == [("misplaced data", 1, "d/first")]
    assert everything(places) == before


def test_a_removal_that_did_not_end(places: Places) -> None:
    handle = handles(places)["both"]
    edit(places, handle, lambda value: (b"o", value[:1] + struct.pack("<I", 0) + value[1:]))
    with opened(places[0]) as store:
        store.execute("DELETE FROM entries WHERE substr(key, 10) = ?", (b"both",))
    report = check(places)
    assert kinds(report) == [("unfinished removal", None, None)]
    assert with_handle(places[0], handle).exists()
    report = check(places, repair=True)
    assert report.unrepaired == ()
    assert not with_handle(places[0], handle).exists()
    assert not with_handle(places[1], handle).exists()
    assert check(places).findings == ()


def test_a_layout_that_names_a_server_which_does_not_exist(places: Places) -> None:
    handle = handles(places)["first"]
    edit(places, handle, lambda value: (b"i", value[:-4] + struct.pack("<I", 9)))
    found = kinds(check(places, repair=True))
    assert found == [("misplaced data", 0, "d/first"), ("missing server", 9, "d/first")]
    assert with_handle(places[0], handle).exists()


def test_data_files_that_are_missing_or_cut_short_or_without_checksums(places: Places) -> None:
    known = handles(places)
    both = with_handle(places[0], known["both"])
    both.unlink()
    sums_of(both).unlink()
    with with_handle(places[0], known["first"]).open("r+b") as file:
        file.truncate(UNIT)
    sums_of(with_handle(places[1], known["second"])).unlink()
    before = everything(places)
    report = check(places, repair=True)
    assert sorted(kinds(report)) == [
        ("missing checksums", 1, "second"),
        ("missing data", 0, "d/both"),
        ("short data", 0, "d/first"),
    ]
    texts = {finding.kind: finding.text for finding in report.findings}
    # Units 0, 2 and 4 of 5; the last unit on the other server is unit 3.
    assert f"{2 * UNIT} bytes" in texts["missing data"]
    assert f"{UNIT} bytes" in texts["short data"]
    assert str(5 * UNIT) in texts["short data"]
    assert everything(places) == before


class FakePool:
    """A pool of one file, whose data file is longer than a test's disk could store."""

    servers = (0,)
    retired = (4,)

    def data_files(self, server: int, after: int, most: int) -> tuple[list[Any], bool]:
        return [], False

    def files(self, after: int, most: int) -> tuple[list[Any], bool]:
        return [(5, "file", Stripes(1 << 40, 3), [7, 0, 4], [], [])], False

    def know(self, handles: list[int]) -> list[Any]:
        return self.files(0, 1)[0]

    def inspect(self, server: int, handles: list[int]) -> list[Any]:
        return [(5, 1 << 62, 4096, 0, 0, 0, False)]


def test_a_length_that_no_file_can_have() -> None:
    checking = pool_fsck._Check(FakePool(), {})  # type: ignore[arg-type]
    found = [finding.kind for finding in checking.files(0)]
    assert found == ["missing server", "impossible length", "retired server"]


@pytest.mark.parametrize("units", [None, 1, 2, 7])
@pytest.mark.parametrize("unit", [1, 3, 10])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_lengths_are_those_of_a_walk_over_the_bytes(
    unit: int, count: int, units: int | None
) -> None:
    stripes = Stripes(unit, count, units)
    for length in range(60):
        ends = [0] * count
        for byte in range(length):
            is_tail = units is not None and byte >= unit * units
            entry = count - 1 if is_tail else byte // unit % count
            assert stripes.locate(byte) == (entry, ends[entry])
            assert stripes.offset_of(entry, ends[entry]) == byte
            ends[entry] += 1
        assert [stripes.local_length(entry, length) for entry in range(count)] == ends
        least = [stripes.length_from(entry, end) for entry, end in enumerate(ends)]
        assert max(one for one in least if one is not None) == length


def test_files_that_come_and_go_meanwhile_are_no_finding(places: Places) -> None:
    with oc.Pool.embedded(places) as pool:
        stop = threading.Event()
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                while not stop.is_set():
                    for i in range(5):
                        with pool.open(
                            f"w{number}/{i}", "w", hints={"stripe_unit_bytes": 4096}
                        ) as f:
                            f.write(bytes(50_000))
                    pool.rm(f"w{number}", recursive=True)
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        try:
            reports = [fsck(pool, patience_s=1.0) for _ in range(3)]
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        assert not errors
        assert [report.findings for report in reports] == [()] * 3


def test_the_command_line_says_what_it_would_do(places: Places) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(main, ["pool", "fsck", *map(str, arguments)])

    result = run(*places)
    assert result.exit_code == 0, result.output
    assert result.stdout == "4 files, 4 data files on 2 servers: all is well\n"
    copy_data(data_files(places[1])[0], with_handle(places[1], 900))
    result = run(*places)
    assert result.exit_code == 1
    assert "stray data: server 1, file 0000000000000384" in result.stdout
    assert "(repair: remove the data file)" in result.stdout
    result = run(*places, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["findings"][0]["kind"] == "stray data"
    result = run(*places, "--repair")
    assert result.exit_code == 0
    assert "(done: remove the data file)" in result.stdout
    assert run(*places).exit_code == 0
    result = run(places[0], places[0].parent)
    assert result.exit_code == 1
    assert "is no directory of a pool" in result.stderr
