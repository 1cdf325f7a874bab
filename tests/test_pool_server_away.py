"""A pool with one server down: commands report on the others, and name the missing one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import outcore
from own_daemons import OwnDaemons, without_patience

import outcore as oc
from outcore import _core
from outcore.errors import DiskError
from outcore.pool.fsck import fsck
from outcore.pool.scrub import scrub

AWAY = r"I/O server 1: no connection to unix:\S*/2 \(is the server running\?\)"
NBYTES = 200_000


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a pool of two servers, of which the second is stopped.

    Each file lies on one server.
    """
    daemons = OwnDaemons(tmp_path, [tmp_path / "a", tmp_path / "b"])
    try:
        with daemons.connect() as pool:
            for name, hints in (
                ("d/here", {"stripe_count": 1, "base": 0}),
                ("d/there", {"stripe_count": 1, "base": 1}),
                ("d/both", {"stripe_unit_bytes": 64 << 10}),
            ):
                with pool.open(name, "w", hints=hints) as file:
                    file.write(bytes(NBYTES))
            pool.mkdir("d/e")
        daemons.daemons.pop().stop()
        without_patience(monkeypatch)
        monkeypatch.setenv("OUTCORE_KEY", str(daemons.key))
        yield daemons.url
    finally:
        daemons.stop()


def said(*arguments: object) -> Any:
    """Return the JSON of a command that exits with status 1."""
    result = outcore(*arguments, "--json")
    assert result.exit_code == 1, result.output
    return json.loads(result.stdout)


def test_errors_name_the_server(url: str) -> None:
    with oc.connect(url) as pool:
        with pytest.raises(DiskError, match=AWAY):
            pool.servers()
        here, there = pool.servers(partial=True)
        assert here.error is None
        assert here.bytes_written >= NBYTES
        assert there.id == 1
        with pytest.raises(DiskError, match=AWAY):
            raise DiskError(there.error or "")
        with pytest.raises(DiskError, match=AWAY):
            pool.stat("d/there")
        with pytest.raises(DiskError, match=AWAY):
            list(pool.scandir("d"))


def test_ls_tells_the_sizes_that_are_known(url: str) -> None:
    result = outcore("ls", "-lb", f"{url}::d")
    assert result.exit_code == 1
    sizes = {line.split()[-1]: line.split()[3] for line in result.stdout.splitlines()}
    assert sizes == {"both": "?", "e": "-", "here": str(NBYTES), "there": "?"}
    assert "the sizes of 2 files are not known: I/O server 1: no connection" in result.stderr
    with oc.connect(url) as pool:
        core, silent = pool.core, _core.SilentServers()
        sent = [core.messages]
        for _ in range(2):
            names = [(name, why is None) for name, _, _, why in core.page("d", silent=silent)[0]]
            assert names == [("both", False), ("e", True), ("here", True), ("there", False)]
            sent.append(core.messages)
        assert sent[2] - sent[1] == sent[1] - sent[0] - 1, "it was not asked again"
    document = said("ls", f"{url}::d", f"{url}::d/both")
    sizes = {Path(each["path"]).name: each["nbytes"] for each in document["entries"]}
    assert sizes == {"both": None, "e": 0, "here": NBYTES, "there": None}
    assert [each["kind"] for each in document["errors"]] == ["io"] * 2
    for path in (f"{url}::d", f"{url}::d/there"):
        assert outcore("ls", path).exit_code == (path[-1] == "e"), "a file is asked for its size"


def test_df_tells_of_the_others(url: str) -> None:
    document = said("df", url + "::")
    (found,) = document["places"]
    here, there = found["servers"]
    assert found["free_bytes"] == here["free_bytes"] > 0
    assert found["striped_bytes"] is None
    assert there["free_bytes"] is None
    assert "I/O server 1" in there["error"]
    assert len(document["errors"]) == 1
    result = outcore("df", url + "::")
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[3] == ["1", "?", "?"]
    assert rows[4][0] == "these"


def test_checks_leave_it_out(url: str, tmp_path: Path) -> None:
    def data_file(handle: int) -> Path:
        (found,) = (tmp_path / "a/data").glob(f"*/{handle:016x}")
        return found

    with oc.connect(url) as pool:
        compared = scrub(pool, progress=False)
        whole = fsck(pool, patience_s=0.01)
        here = data_file(pool.core.handle("d/here"))
        hints = {"stripe_count": 1, "base": 0}
        with pool.open("removed", "w", hints=hints) as file:
            file.write(bytes(10))
        removed = data_file(pool.core.handle("removed"))
        kept = removed.read_bytes()
        pool.rm("removed")
    assert compared.servers == whole.servers == 1
    assert (compared.damage, whole.findings) == ((), ())
    assert NBYTES <= compared.nbytes < 2 * NBYTES
    for report in (compared, whole):
        (one,) = report.unchecked
        assert one.server == 1
        assert str(one).startswith("server 1 was not checked: no connection to ")
        assert str(report).endswith("; not checked: servers 1")
        assert not report.is_well
        assert "all is well" not in str(report)
    assert "nothing is wrong on the others;" in str(whole)
    assert "nothing that was read is damaged;" in str(compared)
    # The check finds damage on the other server, and repairs it.
    here.write_bytes(b"\1" + here.read_bytes()[1:])
    document = said("pool", "scrub", url)
    assert [each["path"] for each in document["damage"]] == ["d/here"]
    assert [each["server"] for each in document["unchecked"]] == [1]
    removed.write_bytes(kept)
    document = said("pool", "fsck", url, "--repair")
    assert [(each["kind"], each["is_repaired"]) for each in document["findings"]] == [
        ("stray data", True)
    ]
    assert [each["server"] for each in document["unchecked"]] == [1]
    assert not removed.exists()
    assert not document["is_well"]
    result = outcore("pool", "fsck", url)
    assert result.exit_code == 1
    assert "all is well" not in result.stdout
    assert "server 1 was not checked: no connection" in result.stdout
