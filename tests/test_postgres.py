"""A pool whose metadata are in PostgreSQL: its work, its settings, and databases that fail it."""

import json
import os
import threading
from pathlib import Path

import pytest
from command_line import outcore
from postgres_server import PostgresServer, postgres
from served import daemon, make_key
from started_pools import connect, directories, kill

import outcore as oc
from outcore import _core
from outcore.errors import BusyError, ExistsError, InvalidError, OutcoreError
from outcore.pool import local_pool

__all__ = ["directories", "postgres"]  # fixtures


def serve(home: Path, url: str, name: str = "a") -> _core.Daemon:
    """Start a manager whose metadata are in a database."""
    if not (home / "key").exists():
        make_key(home / "key")
    return daemon(home, home / "key", "manager", name, listen=f'"unix:{home}/m"', store=f'"{url}"')


def connected(home: Path) -> oc.Pool:
    return oc.connect(f"outcore:{home}/m", key=home / "key")


def test_a_pool_does_its_work_and_keeps_its_database(
    postgres: PostgresServer, directories: list[Path]
) -> None:
    url = postgres.database()
    secret = url.replace("outcore@", "outcore:secret@")
    options = ["--json", "--listen", "127.0.0.1:0", "--store", secret]
    result = outcore("pool", "up", *options, "--dirs", *directories)
    assert result.exit_code == 0, result.output
    content = os.urandom(300_000)
    with connect(directories) as pool:
        pool.mkdir("runs")
        (pool / "runs/first").write_bytes(content)
        (pool / "runs/other").write_bytes(b"")
        pool.mv("runs/first", "runs/second")
        pool.rm("runs/other")
        oc.create_array(pool / "runs/A", (30, 40), "c16").close()
        found = [each.path.inside for each in pool.find("/", 'dtype = "c16" and shape[0] = 30')]
        assert found == ["runs/A"]
    shown = outcore("pool", "status", directories[0])
    assert f"the metadata are in {url}" in shown.stdout
    document = json.loads(outcore("pool", "status", "--json", directories[0]).stdout)
    assert document["store"] == url
    assert not (directories[0] / "manager/metadata.sqlite").exists()

    manager = local_pool.running_manager(directories[0])
    assert manager is not None
    kill(manager.pid)
    assert outcore("pool", "up", directories[0]).exit_code == 0, (
        "with the database of the last start"
    )
    with connect(directories) as pool:
        assert pool.ls("runs") == ["A", "second"]
        assert (pool / "runs/second").read_bytes() == content
    assert outcore("pool", "fsck", directories[0]).exit_code == 0
    assert outcore("pool", "down", directories[0]).exit_code == 0
    for words in (["fsck", *directories], ["retire", directories[0], 1]):
        result = outcore("pool", *words)
        assert result.exit_code == 1
        assert "in a database" in result.stderr
    with pytest.raises(InvalidError, match="in a database"):
        oc.Pool.embedded(directories)
    with pytest.raises(InvalidError, match="pg_dump"):
        _core.backup_metadata(str(directories[0]), str(directories[0] / "copy"))


def refusal(pool: oc.Pool, name: str) -> str | None:
    """Make a directory; return why that was refused. A repeated call that was done fails."""
    try:
        pool.mkdir(name)
    except ExistsError:
        raise
    except OutcoreError as error:
        return str(error)
    return None


def test_a_database_that_restarts_is_only_a_pause(postgres: PostgresServer, tmp_path: Path) -> None:
    manager = serve(tmp_path, postgres.database())
    made = []
    try:
        with connected(tmp_path) as pool:
            for number in range(60):
                if number == 20:
                    assert postgres.tell("stop") == "done"
                    again = threading.Thread(target=lambda: postgres.tell("start"))
                    again.start()
                # On a slow machine, the manager loses its patience before the database is back.
                while said := refusal(pool, f"d{number:02}"):
                    assert "database" in said
                made.append(f"d{number:02}")
            again.join()
            assert pool.ls() == made
    finally:
        manager.stop()


def test_what_is_no_database_of_this_pool_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url, other = postgres.database(), postgres.database()
    manager = serve(tmp_path, url)
    with pytest.raises(BusyError, match="have another manager"):
        serve(tmp_path, url, "b")
    manager.stop()
    serve(tmp_path, other, "b").stop()
    with pytest.raises(InvalidError, match=f"need the metadata of pool {manager.pool}"):
        serve(tmp_path, other)
    with pytest.raises(InvalidError, match="have none in the database"):
        serve(tmp_path, postgres.database())
    with pytest.raises(InvalidError, match="have them in a database"):
        daemon(tmp_path, tmp_path / "key", "manager", "a")
    postgres.sql(url, "UPDATE outcore.store SET format = 2")
    with pytest.raises(InvalidError, match="need a metadata store of format 3, have format 2"):
        serve(tmp_path, url)
    daemon(tmp_path, tmp_path / "key", "manager", "c").stop()
    with pytest.raises(InvalidError, match="outcore pool migrate"):
        serve(tmp_path, other, "c")
    for wrong in ("mysql://db1/pool", "postgres://db1"):
        with pytest.raises(InvalidError, match="need the URL of a database"):
            serve(tmp_path, wrong, "d")
