"""Processes that write numbered states until they are killed, and report the completed ones.

A server that has imported outcore already forks them, so that a start is cheap.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import outcore as oc

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["outcore", "pytest"])
Writer = Callable[[Any, Callable[[int], None]], None]


@contextmanager
def opened(kind: str, above: Path) -> Iterator[Any]:
    """A directory, or a pool embedded in one."""
    if kind == "plain":
        yield above
    else:
        with oc.Pool.embedded([above / "a", above / "b"]) as pool:
            yield pool


def reported_until_killed(
    writer: Writer, kind: str, above: Path, draw: random.Random, most_s: float = 0.05
) -> list[int]:
    """Start a writer, kill it at a random moment after its first report; return its reports."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(writer, kind, above, sender))
    process.start()
    sender.close()
    reports = [receiver.recv()]
    time.sleep(draw.random() * most_s)
    process.kill()
    process.join()
    assert process.exitcode == -9
    while True:
        try:
            reports.append(receiver.recv())
        except EOFError:
            receiver.close()
            return reports


def _run(writer: Writer, kind: str, above: Path, sender: Connection) -> None:
    with opened(kind, above) as root:
        writer(root, sender.send)
