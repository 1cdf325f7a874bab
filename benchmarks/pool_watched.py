"""A busy pool with and without watchers: the manager's page and all metrics, once a second.

64 clients in 8 processes read random pieces of 64 KiB. The pool without watchers has no page, so
its manager asks no server for metrics.
"""

import functools
import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient, together
from benchmarks.rounds import Contender, alternate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool

PROCESSES = 8
CLIENTS = 64
SERVERS = 2
FILE_BYTES = 256 << 20
READS = {"full": 4000, "quick": 500, "tiny": 20}
"""Pieces that each client reads in a round."""
ROUNDS = {"full": 15, "quick": 5, "tiny": 1}
PERIOD_S = 1.0


def measure(setting: Setting) -> Outcome:
    what = f"time of {CLIENTS} busy clients while the page and all metrics are read each second"
    if lacking := why_not():
        return Outcome([Figure(what, skipped=lacking)])
    with Testbed(setting.scratch) as bed, ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name in ("watched", "alone"):
            directories = [setting.scratch / f"{name}{number}" for number in range(SERVERS)]
            pool = BedPool(bed, setting.scratch / name, directories, has_page=name == "watched")
            clients = [
                stack.enter_context(PoolClient(pool.url, pool.key_file)) for _ in range(PROCESSES)
            ]
            clients[0].seconds("make", name="f", nbytes=FILE_BYTES)
            contenders[name] = functools.partial(
                busy, clients, READS[setting.size], pool.watched if name == "watched" else ()
            )
        found = alternate("busy", contenders, rounds=ROUNDS[setting.size])
    return Outcome(
        [
            Figure(
                f"{what}, over that without watchers",
                found.ratios("watched", "alone"),
                Target("≤", 1.01),
                ours=f"{found.median('watched'):.2f} s",
                rival=f"{found.median('alone'):.2f} s",
                details=dict(found.measures),
            )
        ]
    )


def busy(clients: Sequence[PoolClient], reads: int, urls: Sequence[str]) -> float:
    """Let all clients read, and read all `urls` each second; return the clients' time."""
    call = {
        "do": "read_random",
        "name": "f",
        "nbytes": FILE_BYTES,
        "piece": 64 << 10,
        "count": reads,
        "clients": CLIENTS // PROCESSES,
    }
    with watching(urls):
        return together(clients, [call] * len(clients))


@contextmanager
def watching(urls: Sequence[str]) -> Iterator[None]:
    """Read all `urls` each second during the block."""
    is_over = threading.Event()
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            while not is_over.is_set():
                for url in urls:
                    read(url)
                is_over.wait(PERIOD_S)
        except (OSError, http.client.HTTPException) as error:
            failed.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failed:
        raise failed[0]


def read(url: str) -> None:
    """Read a page."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.request("GET", parts.path or "/")
    answer = connection.getresponse()
    if not answer.read() or answer.status != http.client.OK:
        raise OSError(f"{url} answers with {answer.status}")
    connection.close()


if __name__ == "__main__":
    main("pool_watched", measure)
