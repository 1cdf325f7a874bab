"""``outcore info`` on the directories in which a pool keeps its files."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from served import Served

import outcore as oc
from outcore import _core


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with oc.Pool.embedded(["one", "two"]) as pool:
        oc.from_array(np.ones(4), pool / "A", progress=False).close()
    oc.from_array(np.ones(4), "B", progress=False).close()
    return tmp_path


def entries(*paths: object) -> list[dict[str, Any]]:
    result = outcore("info", *paths, "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)["entries"]
    return found


def test_a_directory_says_what_it_has(here: Path) -> None:
    for number, name in enumerate(("one", "two")):
        (found,) = entries(name)
        assert found["kind"] == "pool directory"
        mark = (found["details"]["pool"], found["details"]["I/O server"])
        assert mark == _core.server_mark(name) == (mark[0], number)
        assert ("manager" in found["details"]) == (name == "one")
    said = outcore("info", "one").stdout
    assert f"outcore ls outcore:{here}/one::" in said
    assert outcore("ls", f"outcore:{here}/one::").exit_code in (0, 1)
    assert "first directory has its manager" in outcore("info", "two").stdout


def test_what_lies_in_it_belongs_to_it(here: Path) -> None:
    for name in ("one/manager", "one/server.json", "two/data", "one/manager/metadata.sqlite"):
        (found,) = entries(name)
        assert found["kind"] == "part of a pool"
        assert f"belongs to the pool in {here / name.split('/')[0]};" in found["text"]


def test_above_it_stands_in_the_list(here: Path) -> None:
    found = [(Path(each["path"]).name, each["kind"]) for each in entries(".")]
    assert found == [("B", "array"), ("one", "pool directory"), ("two", "pool directory")]


def test_it_is_never_removed(here: Path) -> None:
    for name in ("one", "two", "one/manager", "one/manager/metadata.sqlite"):
        result = outcore("rm", "-ry", name)
        assert result.exit_code == 1
        assert "is not an object of outcore, so it is not removed" in result.stderr
    with oc.Pool.embedded(["one", "two"]) as pool, oc.open_array(pool / "A") as A:
        assert (A[...] == 1).all()


def test_daemons_of_their_own(served_here: Served) -> None:
    """Each daemon has its own directory; the manager shares none with an I/O server."""
    found = {Path(each["path"]).name: each for each in entries(".")}
    assert {each["kind"] for each in found.values()} == {"pool directory"}
    with oc.connect(served_here.url) as pool:
        assert {each["details"].get("pool") for each in found.values()} >= {pool.id}
    servers = [each["details"].get("I/O server") for each in found.values()]
    assert sorted(each for each in servers if each is not None) == [0, 1]


def test_a_name_in_a_pool_is_none_of_them(served_here: Served) -> None:
    with oc.connect(served_here.url) as pool, pool.open("server.json", "w") as file:
        file.write(b'{"format": 1, "pool": "x", "server": 0}')
    assert "has no objects of outcore" in outcore("info", served_here.url).stdout


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_database_of_another_program_is_no_pool(tmp_path: Path, is_locked: bool) -> None:
    """It may have the name of a manager's store, and a lock beside it."""
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as store, store:
        store.execute("CREATE TABLE books (title TEXT)")
    if is_locked:
        (tmp_path / "lock").touch()
    oc.from_array(np.ones(4), tmp_path / "B", progress=False).close()
    (found,) = entries(tmp_path)
    assert (Path(found["path"]).name, found["kind"]) == ("B", "array")
    assert "is not an object" not in outcore("info", tmp_path / "metadata.sqlite").stdout


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_damaged_store_is_part_of_its_pool(here: Path, content: bytes) -> None:
    (here / "one/server.json").unlink()
    (here / "one/manager/metadata.sqlite").write_bytes(content)
    (found,) = entries("one")
    assert (found["kind"], found["details"]["manager"]) == (
        "pool directory",
        str(here / "one/manager"),
    )
