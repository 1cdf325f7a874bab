"""A bad directory entry or failing server hides no other damage from fsck and scrub."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_files import data_files
from served_pools import in_memory

import outcore as oc
from outcore._core import PoolCheck
from outcore.errors import (
    CorruptError,
    DeniedError,
    DiskError,
    NotFoundError,
    OutcoreError,
    ReadOnlyError,
)
from outcore.pool import fsck as pool_fsck
from outcore.pool import scrub as pool_scrub
from outcore.pool.fsck import fsck
from outcore.pool.scrub import scrub

FILES, SERVERS = 6, 2


@pytest.fixture
def places() -> Iterator[list[Path]]:
    """Yield the directories of a closed pool; each of its files lies on all servers."""
    with in_memory() as above:
        found = [above / "a", above / "b"]
        with oc.Pool.embedded(found) as pool:
            for number in range(FILES):
                with pool.open(f"f{number}", "w", {"stripe_unit_bytes": "64 KiB"}) as file:
                    file.write(bytes([number + 1]) * 300_000)
        yield found


def as_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def as_directory_of_checksums(file: Path) -> None:
    as_directory(file.with_name(f"{file.name}.sealed"))


@pytest.mark.parametrize("spoil", [as_directory, as_loop, as_directory_of_checksums])
def test_the_other_files_of_the_server_are_checked(
    places: list[Path], spoil: Callable[[Path], None]
) -> None:
    first, second, third, *_ = data_files(places[1])
    spoil(first)
    spoil(third)
    # Damage that fsck must find between and behind the bad entries.
    second.write_bytes(second.read_bytes()[:65_536])
    with oc.Pool.embedded(places) as pool:
        report = fsck(pool, repair=True, patience_s=0)
        assert (report.servers, report.files, report.unchecked) == (SERVERS, FILES, ())
        kinds = {each.handle: each.kind for each in report.findings if each.server == 1}
        assert kinds == {
            first.name: "unreadable data", second.name: "short data", third.name: "unreadable data"
        }  # fmt: skip
        assert all(str(places[1]) in each.text for each in report.findings if each.repair is None
                   and each.kind == "unreadable data")  # fmt: skip
        compared = scrub(pool, progress=False)
        assert compared.unchecked == ()
        assert compared.files == SERVERS * FILES - 2
        assert {each.handle for each in compared.damage} == {first.name, second.name, third.name}


def test_what_does_not_belong_there_is_left_alone(places: list[Path]) -> None:
    (place, *_) = data_files(places[1])
    (place.parent / "notes.txt").write_text("of the user")
    (place.parent.parent / "lost+found").mkdir()
    with oc.Pool.embedded(places) as pool:
        assert fsck(pool, repair=True, patience_s=0).findings == ()
        assert scrub(pool, progress=False).damage == ()
    assert (place.parent / "notes.txt").exists()


class Failing:
    """A check in which one server fails in some requests, for some files or all."""

    def __init__(self, core: Any, error: OutcoreError, requests: str, bad: set[int]) -> None:
        self._check = PoolCheck(core)
        self._error, self._requests, self._bad = error, requests, bad

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._check, name)
        if name not in ("data_files", "inspect", "scrub"):
            return found

        def ask(server: int, *arguments: Any) -> Any:
            asked = arguments[0] if name == "inspect" else self._asked(name, server, *arguments)
            if server == 1 and name in self._requests and self._bad & set(asked):
                raise self._error
            return found(server, *arguments)

        return ask

    def _asked(self, name: str, server: int, first: int, *_: int) -> list[int]:
        """Return the file with which a listing or scrub from this handle begins."""
        after = first if name == "data_files" else max(first - 1, 0)
        files, _ = self._check.data_files(server, after, 1)
        return [handle for handle, _ in files]


@pytest.mark.parametrize("error", [ReadOnlyError("spoiled"), CorruptError("spoiled")])
def test_files_of_which_a_server_says_an_error(
    places: list[Path], error: OutcoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {int(file.name, 16) for file in data_files(places[1])[1:3]}
    for module in (pool_fsck, pool_scrub):
        monkeypatch.setattr(
            module, "PoolCheck", lambda core: Failing(core, error, "inspect scrub", bad)
        )
    with oc.Pool.embedded(places) as pool:
        report = fsck(pool, patience_s=0)
        assert {(each.kind, int(each.handle, 16)) for each in report.findings} == {
            ("unreadable data", handle) for handle in bad
        }
        assert report.unchecked == ()
        compared = scrub(pool, progress=False)
        assert {int(each.handle, 16) for each in compared.damage} == bad
        assert compared.unchecked == ()


@pytest.mark.parametrize("error", [ReadOnlyError("all fails"), DiskError("all fails")])
def test_a_server_that_fails_in_all_is_named_and_the_others_checked(
    places: list[Path], error: OutcoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {int(file.name, 16) for file in data_files(places[1])}
    short = data_files(places[0])[2]
    short.write_bytes(short.read_bytes()[:1000])
    for module in (pool_fsck, pool_scrub):
        monkeypatch.setattr(
            module,
            "PoolCheck",
            lambda core: Failing(core, error, "data_files inspect scrub", every),
        )
    with oc.Pool.embedded(places) as pool:
        report = fsck(pool, repair=True, patience_s=0)
        assert [(each.server, each.text) for each in report.unchecked] == [(1, "all fails")]
        assert [(each.kind, each.server) for each in report.findings] == [("short data", 0)]
        compared = scrub(pool, progress=False)
        assert [(each.server, each.text) for each in compared.unchecked] == [(1, "all fails")]
        assert {each.handle for each in compared.damage} == {short.name}


def test_who_may_not_check_is_told_so(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    every = {int(file.name, 16) for file in data_files(places[1])}
    error = DeniedError("not yours")
    for module in (pool_fsck, pool_scrub):
        monkeypatch.setattr(
            module, "PoolCheck", lambda core: Failing(core, error, "inspect scrub", every)
        )
    with oc.Pool.embedded(places) as pool:
        for check in (lambda: fsck(pool, patience_s=0), lambda: scrub(pool, progress=False)):
            with pytest.raises(DeniedError, match="not yours"):
                check()


def test_a_server_of_which_every_file_fails_is_given_up(
    places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_scrub, "_MOST_FAILURES", 2)
    for file in data_files(places[1]):
        as_directory(file)
    every = {int(file.name, 16) for file in places[1].glob("data/*/*") if file.is_dir()}
    error = ReadOnlyError("all fails")
    monkeypatch.setattr(pool_scrub, "PoolCheck", lambda core: Failing(core, error, "scrub", every))
    with oc.Pool.embedded(places) as pool:
        report = scrub(pool, progress=False)
        assert [each.server for each in report.unchecked] == [1]
        assert len(report.damage) == 2


def test_a_server_whose_directory_is_gone_is_named_and_the_others_checked(
    places: list[Path],
) -> None:
    short = data_files(places[0])[2]
    short.write_bytes(short.read_bytes()[:1000])
    with oc.Pool.embedded(places) as pool:
        places[1].rename(places[1].with_name("unplugged"))
        with pytest.raises(NotFoundError):
            pool.servers()
        here, there = pool.servers(partial=True)
        assert (here.error, there.id) == (None, 1)
        assert str(places[1]) in (there.error or "")
        report = fsck(pool, patience_s=0)
        assert [each.server for each in report.unchecked] == [1]
        assert [(each.kind, each.server) for each in report.findings] == [("short data", 0)]
        assert not report.is_well
        compared = scrub(pool, progress=False)
        assert [each.server for each in compared.unchecked] == [1]
        assert {each.handle for each in compared.damage} == {short.name}
