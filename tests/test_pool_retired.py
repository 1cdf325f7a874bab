"""Retire an I/O server whose disk is dead: the pool stays usable, and lists the lost files."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import outcore
from own_daemons import OwnDaemons, without_patience
from served import daemon

import outcore as oc
from outcore import _core
from outcore.errors import (
    BusyError,
    DeniedError,
    DiskError,
    InvalidError,
    NotFoundError,
    OutcoreError,
)
from outcore.pool.fsck import fsck
from outcore.pool.scrub import scrub

UNIT = 64 << 10
CONTENT = bytes(range(256)) * 1000  # Four units, the last one short.
GONE = "I/O server 1 was retired, and the part of d/{} that lay there is gone"


def fill(pool: oc.Pool) -> None:
    for name, hints in (
        ("d/here", {"stripe_count": 1, "base": 0}),
        ("d/there", {"stripe_count": 1, "base": 1}),
        ("d/both", {"stripe_unit_bytes": UNIT, "base": 0}),
    ):
        with pool.open(name, "w", hints=hints) as file:
            file.write(CONTENT)
            file.sync()


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnDaemons]:
    """A pool whose second server does not answer, with files on one server and on both."""
    found = OwnDaemons(tmp_path, [tmp_path / "a", tmp_path / "b"])
    try:
        with found.connect() as pool:
            fill(pool)
        found.daemons.pop().stop()
        without_patience(monkeypatch)
        monkeypatch.setenv("OUTCORE_KEY", str(found.key))
        yield found
    finally:
        found.stop()


def start(daemons: OwnDaemons, directory: Path, socket: str = "other") -> int | None:
    """Start another server of the pool; return its number."""
    home, manager = directory.parent, f'"{daemons.daemons[0].addresses[0]}"'
    listen = f'"unix:{home}/{socket}"'
    daemons.daemons.append(
        daemon(home, daemons.key, "io", directory.name, manager=manager, listen=listen)
    )
    return daemons.daemons[-1].server


def said(*arguments: object, code: int = 0) -> Any:
    result = outcore(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_pool_goes_on_without_it(daemons: OwnDaemons) -> None:
    assert said("pool", "retire", daemons.url, 1) == {"server": 1, "is_retired": True}
    with daemons.connect() as pool:
        assert (pool.retired, [one.id for one in pool.servers()]) == ([1], [0])
        assert pool.free_bytes > 0
        with pool.open("d/new", "w") as file:
            file.write(CONTENT)
            file.sync()
        assert pool.stat("d/new").servers == (0,)
        with pool.open("d/new") as file:
            assert file.read() == CONTENT
        pool.retire(1)
    places = said("df", daemons.url + "::")["places"]
    assert (places[0]["retired"], len(places[0]["servers"])) == ([1], 1)
    assert outcore("df", daemons.url + "::").stdout.endswith("\nretired servers: 1\n")


def test_what_lay_there_is_an_error_that_names_it(daemons: OwnDaemons, tmp_path: Path) -> None:
    with daemons.connect() as pool:
        pool.retire(1)
        for name in ("there", "both"):
            with pool.open(f"d/{name}", "r+") as file:
                with pytest.raises(DiskError, match=GONE.format(name)):
                    file.read()
                with pytest.raises(DiskError, match=GONE.format(name)):
                    file.read_at(UNIT, 10)
                with pytest.raises(DiskError, match=GONE.format(name)):
                    file.write_at(UNIT if name == "both" else 0, b"x")
            with pytest.raises(DiskError, match=f"length of d/{name} is not known: I/O server 1"):
                pool.stat(f"d/{name}")
            result = outcore("cp", f"{daemons.url}::d/{name}", tmp_path)
            assert f"length of d/{name} is not known: I/O server 1" in result.stderr
        with pool.open("d/both") as file:
            # The part on the other server is readable, as far as its length is known.
            assert bytes(file.read_at(0, UNIT)) == CONTENT[:UNIT]
            assert bytes(file.read_at(2 * UNIT, UNIT)) == CONTENT[2 * UNIT : 3 * UNIT]
            with pytest.raises(DiskError, match=GONE.format("both")):
                file.read_at(4 * UNIT, 10)
        with pool.open("d/here") as file:
            assert file.read() == CONTENT
    document = said("stat", f"{daemons.url}::d/both", code=1)
    assert document["entries"][0]["nbytes"] is None
    assert "d/both: its size is not known: I/O server 1" in document["errors"][0]["message"]
    document = said("ls", "-l", f"{daemons.url}::d", code=1)
    assert [each["nbytes"] for each in document["entries"]] == [None, len(CONTENT), None]


@pytest.mark.parametrize("how", ["verb", "one", "all", "replaced"])
def test_its_files_can_be_removed(daemons: OwnDaemons, how: str) -> None:
    with daemons.connect() as pool:
        pool.retire(1)
        if how == "verb":
            removed = said("rm", "-y", f"{daemons.url}::d/both", f"{daemons.url}::d/there")
            assert [each["bytes"] for each in removed["removed"]] == [None, None]
        elif how == "one":
            pool.rm("d/both")
            pool.rm("d/there")
        elif how == "all":
            assert said("rm", "-ry", f"{daemons.url}::d")["removed"]
        else:
            for name in ("both", "there"):
                with pool.open("d/fresh", "w") as file:
                    file.write(CONTENT)
                pool.mv("d/fresh", f"d/{name}")
                assert pool.stat(f"d/{name}").nbytes == len(CONTENT)
        report = fsck(pool, patience_s=0.01)
        assert report.findings == ()
        assert report.retired == (1,)
        with pytest.raises(NotFoundError) if how != "replaced" else pool.open("d/both"):
            pool.stat("d/both")


def test_checks_name_what_is_to_be_restored(daemons: OwnDaemons) -> None:
    with daemons.connect() as pool:
        pool.retire(1)
        report = fsck(pool, patience_s=0.01)
        compared = scrub(pool, progress=False)
    assert {(each.kind, each.server, each.path) for each in report.findings} == {
        ("retired server", 1, "d/both"),
        ("retired server", 1, "d/there"),
    }
    assert (report.servers, report.unchecked, compared.damage, compared.unchecked) == (
        1, (), (), (),
    )  # fmt: skip
    assert str(report).endswith("; retired: servers 1")
    assert str(compared).endswith("nothing is damaged; retired: servers 1")


def test_another_server_has_another_number(daemons: OwnDaemons, tmp_path: Path) -> None:
    with daemons.connect() as pool:
        pool.retire(1)
        shutil.rmtree(tmp_path / "b")
        assert start(daemons, tmp_path / "b") == 2
    with daemons.connect() as pool:
        with pool.open("new", "w", hints={"base": 1}) as file:
            file.write(CONTENT)
        assert pool.stat("new").servers == (2, 0)
        assert [one.id for one in pool.servers()] == [0, 2]


def test_it_is_refused_until_that_is_undone(daemons: OwnDaemons, tmp_path: Path) -> None:
    with daemons.connect() as old:
        with daemons.connect() as pool:
            pool.retire(1)
            pool.rm("d/there")
        with pytest.raises(DeniedError, match="have I/O server 1, which is: its files count as"):
            start(daemons, tmp_path / "b")
        assert said("pool", "retire", daemons.url, 1, "--undo")["is_retired"] is False
        # The server starts again from its old directory.
        assert start(daemons, tmp_path / "b", "2") == 1
        with daemons.connect() as pool:
            with pool.open("d/both") as file:
                assert file.read() == CONTENT
            (stray,) = fsck(pool, patience_s=0.01).findings
            assert (stray.kind, stray.server) == ("stray data", 1)
            with pytest.raises(BusyError, match="I/O server 1 answers"):
                pool.retire(1)
        # A client with the pool open all the time sees no change.
        with old.open("d/both") as file:
            assert file.read() == CONTENT


def test_who_has_it_open_learns_of_it_with_the_next_file(
    daemons: OwnDaemons, tmp_path: Path
) -> None:
    with daemons.connect() as old:
        with daemons.connect() as pool:
            pool.retire(1)
        start(daemons, tmp_path / "c")
        with old.open("new", "w") as file:
            file.write(CONTENT)
        with pytest.raises(DiskError, match=GONE.format("there")):
            old.open("d/there").read()


def test_what_cannot_be_is_refused(daemons: OwnDaemons, tmp_path: Path) -> None:
    user = tmp_path / "user.key"
    _core.derive_key(str(daemons.key), "ada", 1001, [100], str(user))
    with oc.connect(daemons.url, key=user) as pool:
        for undo in (False, True):
            with pytest.raises(DeniedError, match="pool's key"):
                pool.retire(1, undo=undo)
    with daemons.connect() as pool:
        with pytest.raises(BusyError, match="I/O server 0 answers"):
            pool.retire(0)
        for number, match in ((7, "have 7, which it never had"), (-1, "have -1"), (1 << 32, "2")):
            with pytest.raises(InvalidError, match=match):
                pool.retire(number)
        assert pool.retired == []


def test_an_embedded_pool_needs_no_retired_directory(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    with oc.Pool.embedded([a, b]) as pool:
        fill(pool)
    b.rename(tmp_path / "dead")
    # A caller that forgets a directory, as after a job with one per process, gets other advice.
    with pytest.raises(InvalidError, match=r"those of 1 are missing.*the first one first$"):
        oc.Pool.embedded([a])
    with pytest.raises(InvalidError, match=f"those of 1 are.*{c} is a new one.*retire {a} 1$"):
        oc.Pool.embedded([a, c])
    assert said("pool", "retire", a, 1) == {"server": 1, "is_retired": True}
    with oc.Pool.embedded([a, c]) as pool:
        assert (pool.retired, [one.id for one in pool.servers()]) == ([1], [0, 2])
        with pytest.raises(DiskError, match=GONE.format("both")):
            pool.open("d/both").read()
        pool.rm("d/there")
        with pytest.raises(BusyError, match="close it, and use"):
            pool.retire(1, undo=True)
        with pytest.raises(BusyError, match="I/O server 2 answers"):
            pool.retire(2)
        assert outcore("pool", "retire", a, 2).exit_code == 1, "the pool is open"
    with pytest.raises(DeniedError, match=f"dead is of I/O server 1, which was retired.*{a} 1"):
        oc.Pool.embedded([a, c, tmp_path / "dead"])
    outcore("pool", "retire", a, 1, "--undo")
    with oc.Pool.embedded([a, c, tmp_path / "dead"]) as pool:
        assert pool.open("d/both").read() == CONTENT
    with pytest.raises(NotFoundError, match="has no files of a manager"):
        _core.retire_server(str(c), 1)
    assert not (c / "manager").exists()


def test_the_first_directory_is_needed_for_the_names(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with oc.Pool.embedded([a, b]) as pool:
        fill(pool)
    outcore("pool", "retire", a, 0)
    with oc.Pool.embedded([a, b]) as pool:
        assert [one.id for one in pool.servers()] == [1]
        assert pool.open("d/there").read() == CONTENT
        with pytest.raises(OutcoreError, match="I/O server 0 was retired"):
            pool.open("d/here").read()
