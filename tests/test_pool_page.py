"""The manager's page for people: its content, its readers' rights, and its look in a browser."""

import base64
import html
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import faults_of, picture_of
from communicators import ThreadComm, ThreadJob
from own_daemons import OwnDaemons
from pool_files import data_files, flip
from served import make_key
from started_pools import directories

import outcore as oc
from outcore.pool.scrub import scrub

__all__ = ["directories"]

LONG_S = 60.0


@pytest.fixture
def served(tmp_path: Path, directories: list[Path]) -> Iterator[OwnDaemons]:
    """A manager with a page, and two I/O servers, in this process."""
    daemons = OwnDaemons(tmp_path, directories, page="127.0.0.1:0")
    yield daemons
    daemons.stop()


def page(served: OwnDaemons, **headers: str) -> str:
    url = served.daemons[0].page
    assert url is not None
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
        text: str = answer.read().decode()
    return text


def refused(served: OwnDaemons, **headers: str) -> tuple[int, Message, bytes]:
    """Return status, headers and text of a refusal."""
    with pytest.raises(urllib.error.HTTPError) as error:
        page(served, **headers)
    with error.value as answer:
        return answer.code, answer.headers, answer.read()


def until(served: OwnDaemons, is_so: Callable[[str], object]) -> str:
    """Return the page as soon as it satisfies a condition: the manager asks every two seconds."""
    end = time.monotonic() + LONG_S
    while not is_so(found := page(served)):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def cells(found: str, table: str) -> dict[str, list[str]]:
    """Return the texts of a table's rows, by the text of their first cell."""
    (inside,) = re.findall(rf'<table id="{table}">(.*?)</table>', found, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in inside.split("</tr>")]
    texts = [[html.unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in row] for row in rows]
    return {row[0]: row[1:] for row in texts if row}


def has_both(found: str) -> bool:
    """Whether the manager has the metrics of both servers."""
    return found.count('<td class="text good">well') == 3


def test_the_page_shows_daemons_channels_and_clients(served: OwnDaemons) -> None:
    with served.connect() as pool:
        with pool.open("f", "w", hints={"stripe_count": 1, "base": 0}) as file:
            file.write(bytes(100_000))
        found = until(served, has_both)
        daemons = cells(found, "daemons")
        assert list(daemons) == ["manager", "I/O server 0", "I/O server 1"]
        assert {row[0] for row in daemons.values()} == {"well"}
        assert daemons["I/O server 0"][10].endswith("iB"), "its free space"
        channels = cells(found, "channels")
        assert set(channels) >= {address for each in served.daemons for address in each.addresses}
        assert sum(int(row[0]) for row in cells(found, "clients").values()) >= 3
        assert found.count("<svg") == 3
        assert pool.id in found
        assert "<script" not in found
        assert "http://" not in re.sub(r"http://www\.w3\.org\S*", "", found)
        assert "Look at these" not in found


def test_errors_are_faults_of_the_server(served: OwnDaemons) -> None:
    with served.connect() as pool:
        for n in range(3):
            assert not pool.exists(f"none{n}")
        pool.open("new", "w").close()
        found = until(served, has_both)
        for _ in range(2):  # The figures of the second one are from after the requests.
            up = cells(found, "daemons")["manager"][1]
            found = until(served, lambda page: cells(page, "daemons")["manager"][1] != up)  # noqa: B023
        assert cells(found, "daemons")["manager"][11] == "0"


def test_rates_and_latencies_are_those_of_the_work(served: OwnDaemons) -> None:
    with served.connect() as pool, pool.open("f", "w+b") as file:

        def moves(text: str) -> bool:
            file.write_at(0, bytes(1 << 20))
            file.read_at(0, 1 << 20)
            rows = cells(text, "daemons") if "daemons" in text else {}
            row = rows.get("I/O server 0", [])
            return len(row) > 7 and all("iB/s" in cell for cell in row[2:4]) and row[5] != "\u2013"

        row = cells(until(served, moves), "daemons")["I/O server 0"]
    p50, p95, p99 = (_seconds(text) for text in row[5:8])
    assert 0 < p50 <= p95 <= p99 < LONG_S


def _seconds(text: str) -> float:
    number, unit = text.split(" ")
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_damage_and_a_silent_server_are_warnings(
    directories: list[Path], served: OwnDaemons
) -> None:
    with served.connect() as pool:
        with pool.open("f", "w", hints={"stripe_count": 1, "base": 0}) as file:
            file.write(bytes(100_000))
            file.sync()
        flip(data_files(directories[0])[0], 5)
        scrub(pool, progress=False)
    served.stop_one(2)
    found = until(served, lambda text: "does not answer" in text and "damaged block" in text)
    assert "I/O server 0 has 1 damaged block:" in found
    assert "I/O server 1 at unix:" in found
    assert cells(found, "daemons")["I/O server 0"][12] == "1"


class Late(ThreadComm):
    """A rank that leaves its first broadcast only when the test lets it."""

    def __init__(self, rank: int, shared: ThreadJob, told: threading.Event) -> None:
        super().__init__(rank, shared)
        self._told = told

    def bcast(self, value: Any, root: int = 0) -> Any:
        found = super().bcast(value, root)
        assert self._told.wait(LONG_S)
        return found


def test_a_collective_in_flight_is_shown_with_its_progress(served: OwnDaemons) -> None:
    """Process 1 comes to the servers only when the page has shown that process 0 waits for it."""
    told, job = threading.Event(), ThreadJob(2)
    comms = [ThreadComm(0, job), Late(1, job, told)]
    whole = np.ones((64, 64))
    with served.connect() as pool, ThreadPoolExecutor() as threads:
        array = oc.create_array(pool / "a", whole.shape)

        def write(comm: ThreadComm) -> None:
            rows = whole[32 * comm.rank : 32 * comm.rank + 32]
            array.write_all(rows, "block,*", comm, progress=False)

        calls = [threads.submit(write, comm) for comm in comms]
        try:
            found = until(served, lambda text: 'id="collectives"' in text)
        finally:
            told.set()
        for call in calls:
            call.result()
        (row,) = cells(found, "collectives").values()
        assert row[1] == "1 of 2"
        assert row[-1].endswith("%")
        assert (array[...] == whole).all()
        until(served, lambda text: 'id="collectives"' not in text)


def test_the_key_is_the_password(tmp_path: Path, directories: list[Path]) -> None:
    key = tmp_path / "page.key"
    other = make_key(tmp_path / "other.key")
    make_key(key)
    served = OwnDaemons(tmp_path, directories[:1], page="127.0.0.1:0", page_key_file=str(key))
    try:
        for password in (None, "", "0" * 64, _digits(other)):
            headers = {} if password is None else {"Authorization": _basic("ada", password)}
            status, said, _ = refused(served, **headers)
            assert status == 401
            assert said["WWW-Authenticate"].startswith("Basic")
        assert "outcore" in page(served, Authorization=_basic("anybody", _digits(key)))
    finally:
        served.stop()


def _digits(key: Path) -> str:
    (found,) = re.findall(r"\b[0-9a-f]{64}\b", key.read_text())
    return str(found)


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page": "0.0.0.0:0"}, "need page_key_file for a page that other machines can read"),
        ({"page": "elsewhere"}, "need page_key_file for a page"),
        ({"page": "127.0.0.1"}, "cannot serve the page at 127.0.0.1|need page_key_file"),
        ({"page_key_file": "{key}"}, "need page for page_key_file"),
        ({"page": "127.0.0.1:0", "page_key_file": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    tmp_path: Path, directories: list[Path], settings: dict[str, str], message: str
) -> None:
    filled = {name: value.format(key=tmp_path / "key") for name, value in settings.items()}
    with pytest.raises(oc.OutcoreError, match=message):
        OwnDaemons(tmp_path, directories[:1], **filled)


def test_another_site_cannot_read_the_page_in_a_browser_of_this_machine(
    served: OwnDaemons,
) -> None:
    status, _, text = refused(served, Host="evil.example:80")
    assert status == 404
    assert b"localhost" in text
    assert "outcore" in page(served, Host="localhost:9470")


def test_there_is_no_page_unless_it_is_asked_for(tmp_path: Path, directories: list[Path]) -> None:
    served = OwnDaemons(tmp_path, directories[:1])
    assert [daemon.page for daemon in served.daemons] == [None, None]
    served.stop()


def test_a_browser_draws_the_page(served: OwnDaemons, tmp_path: Path) -> None:
    with served.connect() as pool, pool.open("f", "w+b") as file:

        def has_lines(text: str) -> bool:
            file.write_at(0, bytes(1 << 20))
            return text.count("<polyline") >= 6 and "MiB/s\n" in text

        found = until(served, has_lines)
    url = served.daemons[0].page
    assert url is not None
    picture_of(url, tmp_path)
    assert faults_of([found], tmp_path) == []
