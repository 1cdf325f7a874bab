"""Requests: many small pieces by one request against one request per piece, and creates per second.

Strided requests as in Ross et al. (2001) and Cettei et al. (1997): one request describes all
pieces.
"""

import functools
import itertools
import shutil
import sqlite3
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient, together
from benchmarks.rounds import Contender, alternate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool

PIECE_BYTES = 512
STRIDE_BYTES = 2048
PIECES = {"full": 16384, "quick": 4096, "tiny": 64}
SERVERS = 2
CLIENTS = 8
LISTED = 1_000_000
LISTED_SHARE = {"full": 1 / 4, "quick": 1 / 16, "tiny": 1 / 512}
"""Share of the bytes that are moved; the time is scaled."""

CREATES = {"full": 1000, "quick": 250, "tiny": 5}
RECORD = bytes(80)
"""About as many bytes as the manager stores for a file."""


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("requests to a pool", skipped=lacking)])
    with Testbed(setting.scratch) as bed:
        directories = [setting.scratch / f"data{number}" for number in range(SERVERS)]
        pool = BedPool(bed, setting.scratch / "state", directories)
        return Outcome([*pieces(setting, pool), listed(setting, pool), *creates(setting, pool)])


def pieces(setting: Setting, pool: BedPool) -> list[Figure]:
    """Move pieces of 512 bytes."""
    count = PIECES[setting.size]
    rounds = 1 if setting.size == "tiny" else 5
    figures = []
    with PoolClient(pool.url, pool.key_file) as client:
        client.seconds("make", name="f", nbytes=count * STRIDE_BYTES, stripe_unit_bytes=64 << 10)
        what: dict[str, Any] = {
            "name": "f",
            "piece": PIECE_BYTES,
            "stride": STRIDE_BYTES,
            "count": count,
        }
        for direction in ("write", "read"):
            runs: dict[str, Contender] = {
                how: functools.partial(client.seconds, f"{direction}_{how}", **what)
                for how in ("strided", "pieces")
            }
            found = alternate(f"{direction}, pieces", runs, rounds=rounds)
            figures.append(
                Figure(
                    f"{direction} {count} pieces of {PIECE_BYTES} bytes: "
                    "time of a request each over that of one strided request",
                    found.ratios("pieces", "strided"),
                    Target("≥", 20),
                    ours=f"{found.median('strided'):.4f} s",
                    rival=f"{found.median('pieces'):.2f} s",
                    details=dict(found.measures),
                )
            )
    return figures


def listed(setting: Setting, pool: BedPool) -> Figure:
    """Describe and decode a list of a million regions, against moving as many bytes."""
    what = (
        f"describing and decoding a list of {LISTED} regions of 4 KiB, against moving their bytes"
    )
    if shutil.which("cargo") is None:
        return Figure(what, skipped="cargo is not installed")
    run = subprocess.run(
        ["cargo", "run", "--release", "-q", "-p", "outcore-core", "--example", "list_request"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    described = [float(line) for line in run.stdout.split()]
    nbytes = LISTED_SHARE[setting.size] * LISTED * 4096
    with PoolClient(pool.url, pool.key_file) as client:
        client.seconds("make", name="listed", nbytes=int(nbytes))
        seconds = client.seconds("read", name="listed", offset=0, nbytes=int(nbytes))
    moved = seconds * LISTED * 4096 / nbytes
    return Figure(
        what,
        [value / moved for value in described],
        Target("≤", 0.1),
        ours=f"{statistics.median(described) * 1e3:.0f} ms",
        rival=f"{moved:.2f} s",
        details={"described": described, "moved": moved},
    )


def creates(setting: Setting, pool: BedPool) -> list[Figure]:
    """Create files by several clients concurrently, each durable when it is answered.

    The manager commits waiting requests together. SQLite alone is measured with as many rows in
    each commit as the manager had. It is also measured with one row of each client in each commit,
    which no manager can always have.
    """
    count = CREATES[setting.size]
    ways = {"TCP": pool.url}
    if pool.local_url is not None:
        ways["UNIX sockets"] = pool.local_url
    clients = {
        way: [PoolClient(url, pool.key_file) for _ in range(CLIENTS)] for way, url in ways.items()
    }
    numbers = iter(range(1000))
    batches: dict[str, list[float]] = {way: [] for way in ways}

    def ours(way: str) -> float:
        round_ = next(numbers)
        calls = [
            {"do": "create", "directory": f"r{round_}/c{number}", "count": count}
            for number in range(CLIENTS)
        ]
        before = commits(pool)
        seconds = together(clients[way], calls)
        batches[way].append(CLIENTS * count / (commits(pool) - before))
        return CLIENTS * count / seconds

    def bare(way: str | None) -> float:
        path = setting.scratch / f"bare{next(numbers)}"
        batch = CLIENTS if way is None else batches[way][-1]
        return CLIENTS * count / bare_seconds(path, CLIENTS * count, batch)

    contenders: dict[str, Contender] = {}
    for way in ways:
        contenders[way] = functools.partial(ours, way)
        contenders[f"SQLite as {way}"] = functools.partial(bare, way)
    contenders["SQLite"] = functools.partial(bare, None)
    try:
        found = alternate(
            "creates", contenders, rounds=1 if setting.size == "tiny" else 5, show=a_second
        )
    finally:
        for client in itertools.chain(*clients.values()):
            client.__exit__()
    return [
        Figure(
            f"durable creates by {CLIENTS} clients over {way}, against bare SQLite commits of "
            f"{rows}: files a second",
            found.ratios(way, rival),
            Target("≥", 0.5) if rival != "SQLite" else None,
            ours=a_second(found.median(way)),
            rival=a_second(found.median(rival)),
            details=dict(found.measures) | {"batches": batches[way]},
        )
        for way in ways
        for rows, rival in (
            (f"the same batch ({statistics.median(batches[way]):.1f} rows)", f"SQLite as {way}"),
            (f"{CLIENTS} rows", "SQLite"),
        )
    ]


def commits(pool: BedPool) -> int:
    """Return the manager's number of commits so far."""
    with urllib.request.urlopen(pool.metrics) as answer:
        page: str = answer.read().decode()
    return int(page.split("\noutcore_commits_total ")[1].split()[0])


def bare_seconds(path: Path, rows: int, batch: float) -> float:
    """Return the time of rows inserted by SQLite alone, with `batch` rows per commit on average."""
    commits = max(round(rows / batch), 1)
    with sqlite3.connect(path, isolation_level=None) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(
            "CREATE TABLE files (name BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID"
        )
        begin = time.monotonic()
        for number in range(commits):
            database.execute("BEGIN IMMEDIATE")
            for row in range(number * rows // commits, (number + 1) * rows // commits):
                name = f"c{row % CLIENTS}/{row // CLIENTS:06}".encode()
                database.execute("INSERT INTO files VALUES (?, ?)", (name, RECORD))
            database.execute("COMMIT")
        seconds = time.monotonic() - begin
    database.close()
    return seconds


def a_second(value: float) -> str:
    """Format a number per second."""
    return f"{value:.0f} /s"


if __name__ == "__main__":
    main("pool_requests", measure)
