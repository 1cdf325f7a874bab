"""Backups of a pool's metadata, made while it runs and restored: no file gets foreign data."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from command_line import outcore
from metadata_store import opened, records
from own_daemons import OwnDaemons
from served import daemon

import outcore as oc
from outcore import _core
from outcore.errors import BusyError, ExistsError, InvalidError, NotFoundError
from outcore.pool.fsck import fsck

SECRET = b"PRIVATE OF ADA\n" * 20_000


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Return the directories of a pool of two servers."""
    return [tmp_path / "a", tmp_path / "b"]


def put_back(places: list[Path], during: Callable[[OwnDaemons], None]) -> None:
    """Back up, make newer files in a later run, restore the backup, and start."""
    state, copy = places[0].parent, places[0].parent / "copy"
    daemons = OwnDaemons(state, places)
    try:
        with daemons.connect() as pool:
            (pool / "first").write_bytes(b"first")
            assert outcore("pool", "backup", places[0], copy).exit_code == 0
    finally:
        daemons.stop()
    daemons = OwnDaemons(state, places)
    try:
        with daemons.connect() as pool:
            (pool / "secret").write_bytes(SECRET)
    finally:
        daemons.stop()
    result = outcore("pool", "restore", places[0], copy)
    assert result.exit_code == 0, result.output
    assert "replaced-1" in result.output
    daemons = OwnDaemons(state, places)
    try:
        during(daemons)
    finally:
        daemons.stop()


def test_new_files_never_have_the_bytes_of_newer_ones(places: list[Path]) -> None:
    def look(daemons: OwnDaemons) -> None:
        with daemons.connect() as pool:
            assert pool.ls() == ["first"]
            assert {each.kind for each in fsck(pool, patience_s=0).findings} == {"newer data"}
            for number in range(30):
                with pool.open(f"note{number}", "w") as file:
                    file.write(b"hi")
                    file.sync()
                assert (pool / f"note{number}").read_bytes() == b"hi"
            report = fsck(pool, patience_s=0)
            assert {each.kind for each in report.findings} == {"stray data"}
            lost = {each.handle for each in report.findings}
            assert len(lost) == 1
            assert (pool / "first").read_bytes() == b"first"
        kept = places[0] / "manager" / "replaced-1" / "metadata.sqlite"
        with closing(sqlite3.connect(kept)) as store:
            assert any(key[9:] == b"secret" for key, _ in records(store))

    put_back(places, look)


def test_servers_that_run_tell_a_manager_that_starts_anew(places: list[Path]) -> None:
    def look(daemons: OwnDaemons) -> None:
        home = places[0].parent
        with daemons.connect() as pool:
            (pool / "later").write_bytes(SECRET)
        daemons.daemons[0].stop()
        _core.restore_metadata(str(places[0]), str(home / "copy"))
        manager = daemon(home, daemons.key, "manager", "a", listen=f'"unix:{home}/0"')
        try:
            with daemons.connect() as pool:
                # The servers may or may not have reported their handles yet.
                for number in range(20):
                    (pool / f"note{number}").write_bytes(b"hi")
                    assert (pool / f"note{number}").read_bytes() == b"hi"
        finally:
            manager.stop()

    put_back(places, look)


def test_a_copy_has_what_was_answered_and_is_private(places: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with oc.Pool.embedded(places) as pool:
        for number in range(50):
            pool.mkdir(f"d{number}")
            if number == 40:
                _core.backup_metadata(str(places[0]), str(copy))
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = {key[9:].decode() for key, _ in records(store) if key[:1] == b"n"}
    assert names == {f"d{number}" for number in range(41)}
    with opened(places[0]) as store:
        assert sum(key[:1] == b"n" for key, _ in records(store)) == 50
    with pytest.raises(ExistsError, match="give another name"):
        _core.backup_metadata(str(places[0]), str(copy))
    with pytest.raises(NotFoundError, match="name the pool's first directory"):
        _core.backup_metadata(str(places[1]), str(tmp_path / "other"))


def test_what_is_no_copy_of_this_pool_is_refused(places: list[Path], tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "of another"
    with oc.Pool.embedded(places) as pool:
        pool.mkdir("d")
        _core.backup_metadata(str(places[0]), str(copy))
        with pytest.raises(BusyError, match="uses this directory"):
            _core.restore_metadata(str(places[0]), str(copy))
    with oc.Pool.embedded([tmp_path / "c"]):
        _core.backup_metadata(str(tmp_path / "c"), str(other))
    (tmp_path / "text").write_text("no database at all, however long it may be" * 100)
    shutil.copy(copy, tmp_path / "damaged")
    with closing(sqlite3.connect(tmp_path / "damaged")) as store, store:
        store.execute("UPDATE entries SET version = version + 1")
    with opened(places[0]) as store:
        before = records(store)
    with pytest.raises(InvalidError, match="need a copy of the metadata of pool"):
        _core.restore_metadata(str(places[0]), str(other))
    for name in ("text", "damaged"):
        assert outcore("pool", "restore", places[0], tmp_path / name).exit_code != 0
    with opened(places[0]) as store:
        assert records(store) == before
    assert sorted(each.name for each in (places[0] / "manager").iterdir()) == [
        "lock",
        "metadata.sqlite",
        "reserve",
    ]
