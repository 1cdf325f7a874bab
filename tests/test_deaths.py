"""Deaths of processes of the same host, as a call on several processes notices them."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from outcore.errors import DiskError
from outcore.processes import deaths
from outcore.processes.deaths import Deaths, Identity, identity

SAYS = "import sys; from outcore.processes.deaths import identity; print([*identity()]); input()"


class Child:
    """Another process, and its identity."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.identity = Identity(*eval(self.process.stdout.readline()))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    found = [Child(), Child()]
    yield found
    for child in found:
        child.kill()


def own() -> Identity:
    found = identity()
    assert found is not None
    return found


def until_it_raises(watching: Deaths) -> None:
    while True:
        watching.check()


def test_the_death_of_a_process_is_noticed(children: list[Child]) -> None:
    """The handles are closed. A process without an identity, and this one, are not watched."""
    handles = len(os.listdir("/proc/self/fd"))
    watching = Deaths()
    watching.watch([children[0].identity, own(), None, own(), children[1].identity], 1)
    watching.check()
    children[1].kill()
    with pytest.raises(DiskError, match=r"^rank 4 died during the call; look") as caught:
        until_it_raises(watching)
    assert caught.value.is_lost  # type: ignore[attr-defined]
    watching.close()
    watching.check()
    assert len(os.listdir("/proc/self/fd")) == handles - 2, "those of the child"


def test_threads_look_one_at_a_time() -> None:
    class Ends:
        """Connections of which some end all the time."""

        def __init__(self) -> None:
            self.inside, self.most, self.calls = 0, 0, 0

        def ended(self) -> list[int]:
            self.inside += 1
            self.most, self.calls = max(self.most, self.inside), self.calls + 1
            time.sleep(0.001)
            self.inside -= 1
            return []

        def close(self) -> None:
            pass

    watching, ends, (reader, writer) = Deaths(), Ends(), os.pipe()
    os.write(writer, b".")
    watching._links, watching._ended = cast(Any, ends), select.epoll()
    watching._ended.register(reader, select.EPOLLIN)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(watching.check) for _ in range(40)]:
            done.result()
    assert (ends.most, ends.calls) == (1, 40)
    watching.close()
    os.close(reader)
    os.close(writer)


def test_other_processes_with_the_same_number(
    children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have begun later, or number processes in another container or on another host."""
    monkeypatch.setattr(deaths, "_LAST_S", 0.0)
    killed, alive = (child.identity for child in children)
    others = [
        alive._replace(began="1"),
        killed._replace(numbering=(killed.numbering[0], "pid:[1]")),
        killed._replace(numbering=("another host", killed.numbering[1])),
    ]
    watching = Deaths()
    watching.watch([own(), *others], 0)
    for child in children:
        child.kill()
    watching.check()
    watching.watch([own(), killed], 0)  # it has died before
    watching.check()
    watching.close()


@pytest.mark.parametrize("why", [OSError, AttributeError])
def test_a_system_without_handles_of_processes(
    why: type[Exception], children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> int:
        raise why

    monkeypatch.setattr(os, "pidfd_open", refuse)
    watching = Deaths()
    watching.watch([own(), children[0].identity], 0)
    children[0].kill()
    watching.check()
    watching.close()
