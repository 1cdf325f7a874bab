"""``outcore pool migrate``: a pool's metadata to PostgreSQL and back, also if it is killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import outcore
from killed_at_call import preloaded
from metadata_store import opened, records
from postgres_server import PostgresServer, postgres
from test_postgres import connected, serve

import outcore as oc
from outcore import _core
from outcore.errors import BusyError, ExistsError, InvalidError, NotFoundError

__all__ = ["postgres", "preloaded"]  # fixtures

MIGRATE = """
import sys
from importlib.machinery import ExtensionFileLoader
loader = ExtensionFileLoader("_core", sys.argv[1])
_core = loader.load_module()
_core.migrate_metadata(sys.argv[2], sys.argv[3], sys.argv[4] == "back")
"""
"""Without the other modules of outcore, whose imports would take most of the time."""


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Make a pool in a directory; its records are several pages of a copy."""
    place = tmp_path / "a"
    with oc.Pool.embedded([place]) as pool:
        for number in range(260):
            pool.mkdir(f"d{number:03}")
        (pool / "file").write_bytes(b"content")
    return place


def names(place: Path) -> list[str]:
    with oc.Pool.embedded([place]) as pool:
        assert (pool / "file").read_bytes() == b"content"
        return pool.ls()


def test_there_and_back(postgres: PostgresServer, pool: Path) -> None:
    url, before = postgres.database(), names(pool)
    with opened(pool) as store:
        kept = records(store)
    result = outcore("pool", "migrate", pool, "--to", url)
    assert result.exit_code == 0, result.output
    assert f"{len(kept)} records, equal" in result.stdout
    assert "add store in the settings" in result.stdout
    assert (pool / "manager/replaced-1/metadata.sqlite").is_file()
    count = "SELECT count(*), sum(length(value)) FROM outcore.entries"
    assert postgres.sql(url, count) == f"{len(kept)}|{sum(len(value) for _, value in kept)}"
    assert outcore("pool", "migrate", pool, "--to", url).exit_code == 0, "a second time"
    with pytest.raises(InvalidError, match="in a database"):
        oc.Pool.embedded([pool])

    manager = serve(pool.parent, url)
    with connected(pool.parent) as served:
        assert served.ls() == before
        served.mkdir("later")
    with pytest.raises(BusyError):
        _core.migrate_metadata(str(pool), url, True)
    manager.stop()
    result = outcore("pool", "migrate", pool, "--from", url)
    assert result.exit_code == 0, result.output
    assert names(pool) == sorted([*before, "later"])
    with pytest.raises(InvalidError, match="moved elsewhere"):
        serve(pool.parent, url, "b")


def test_what_cannot_be_migrated_is_refused(
    postgres: PostgresServer, pool: Path, tmp_path: Path
) -> None:
    url = postgres.database()
    other = serve(tmp_path, url, "b")
    with pytest.raises(BusyError):
        _core.migrate_metadata(str(pool), url)
    other.stop()
    with pytest.raises(
        ExistsError, match=f"need an empty database, have metadata of pool {other.pool}"
    ):
        _core.migrate_metadata(str(pool), url)
    with pytest.raises(InvalidError, match=f"have those of pool {other.pool}"):
        _core.migrate_metadata(str(pool), url, True)
    with oc.Pool.embedded([pool]), pytest.raises(BusyError, match="uses this directory"):
        _core.migrate_metadata(str(pool), postgres.database())
    with pytest.raises(NotFoundError, match="no metadata of a pool"):
        _core.migrate_metadata(str(tmp_path), postgres.database())
    for words in ([], ["--to", url, "--from", url]):
        assert outcore("pool", "migrate", pool, *words).exit_code == 2
    assert names(pool)


@pytest.mark.parametrize("way", ["to", "back"])
def test_killed_before_each_call(
    postgres: PostgresServer, pool: Path, preloaded: Path, all_lines: bool, way: str
) -> None:
    before = names(pool)

    def migrate(home: Path, url: str, way: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", MIGRATE, _core.__file__, str(home), url, way],
            env={**os.environ, "LD_PRELOAD": str(preloaded)} | more,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def start() -> tuple[Path, str]:
        url, home = postgres.database(), shutil.copytree(pool, pool.with_name("copy"))
        if way == "back":
            _core.migrate_metadata(str(home), url)
        return home, url

    home, url = start()
    done = migrate(home, url, way)
    assert done.returncode == 0, done.stderr
    count = int(done.stderr.split("calls:")[1])
    shutil.rmtree(home)
    for number in range(1, count + 1, 1 if all_lines else max(count // 5, 1)):
        home, url = start()
        killed = migrate(home, url, way, KILL_AT=str(number))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        # One store of the two can be used, or the same call finishes the migration.
        usable = shutil.copytree(home, pool.with_name("usable"))
        if (usable / "manager/database").exists():
            if postgres.sql(url, "SELECT state FROM outcore.store") == "whole":
                serve(usable.parent, url, "usable").stop()
            else:
                with pytest.raises(InvalidError, match="outcore pool migrate"):
                    serve(usable.parent, url, "usable")
        else:
            assert names(usable) == before
        shutil.rmtree(usable)
        finished = migrate(home, url, way)
        assert finished.returncode == 0, finished.stderr
        if way == "back":
            assert names(home) == before
        else:
            manager = serve(home.parent, url, "copy")
            with connected(home.parent) as served:
                assert served.ls() == before
            manager.stop()
        shutil.rmtree(home)
