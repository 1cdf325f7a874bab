"""The balance of a cluster: an agent on each host, and pairs of agents, measure on request."""

import contextlib
import itertools
import json
import math
import random
import secrets
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outcore.balance.balance import Balance, Link, MeasuredHost, Use
from outcore.balance.directories import shared_disks
from outcore.balance.disks import Disk
from outcore.balance.model import Cluster, shared_rate
from outcore.balance.processor_rates import ProcessorRates
from outcore.errors import DiskError, InvalidError, from_kind

RUN = "ssh {host} outcore"
"""The command that runs outcore on a host, by default."""

MOST_PAIRS = 28
"""Number of pairs that are measured by default: all pairs of eight hosts."""

_END_S = 5.0

Pair = tuple[int, int]


@dataclass(frozen=True)
class HostName:
    """The name of a host, and its address in each network."""

    name: str
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "HostName":
        """Parse ``NAME`` or ``NAME=ADDRESS,ADDRESS``.

        Raises
        ------
        InvalidError
            If a part is empty.
        """
        name, is_given, addresses = text.partition("=")
        found = tuple(addresses.split(",")) if is_given else (name.rpartition("@")[2],)
        # A name that begins with a hyphen would be an option of ssh.
        if not name or name.startswith("-") or not all(found):
            raise InvalidError(f"need HOST or HOST=ADDRESS,ADDRESS, have {text!r}")
        return cls(name, found)


def balance_of_hosts(
    hosts: Sequence[str],
    directories: Sequence[str],
    seconds: float,
    *,
    pairs: int = MOST_PAIRS,
    run: str = RUN,
) -> Balance:
    """Measure hosts that this machine reaches, and the network between them.

    Parameters
    ----------
    hosts
        ``NAME`` or ``NAME=ADDRESS,ADDRESS`` of each host: its address in each network.
    directories
        Directories on the disks of every host; ``{host}`` is replaced by its name.
    seconds
        Approximate time for each disk. A way between two hosts takes a quarter of it.
    pairs
        Largest number of measured pairs. If there are more, they are a random sample, in which each
        host occurs.
    run
        Command that runs outcore on a host; ``{host}`` is replaced by its name.

    Raises
    ------
    InvalidError
        If a host is named twice, or a name is invalid.
    DiskError
        If a host does not answer, or two hosts do not reach each other.
    OutcoreError
        If a host cannot measure its disks; the message names it.
    """
    names = [HostName.parse(text) for text in hosts]
    if len({each.name for each in names}) < len(names):
        raise InvalidError("a host is named twice; name each once")
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(_Agent(each, run)) for each in names]
        return _Measurement(agents, directories, seconds).run(pairs)


class _Agent:
    """The agent of a host; use it as a context manager."""

    def __init__(self, host: HostName, run: str) -> None:
        self.host = host
        words = [word.replace("{host}", host.name) for word in shlex.split(run)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `__exit__`
        self._command = [*words, "balance", "--agent"]
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                text=True,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise self._silent(f"{words[0]}: {error.strerror}") from None
        self.ports: list[int] = []
        self._is_greeted = False

    def ask(self, do: str, **given: Any) -> None:
        """Send a request, whose answer `answer` returns."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer is the error
            self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest open request."""
        if not self._is_greeted:
            self._is_greeted = True
            self._next()
        return self._next()

    def _next(self) -> Any:
        assert self._process.stdout is not None
        try:
            said = json.loads(self._process.stdout.readline())
            if "found" in said:
                return said["found"]
            kind, message = said["error"]["kind"], said["error"]["message"]
        except (ValueError, KeyError, TypeError):
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
            raise self._silent(lines[-1] if lines else "it said nothing") from None
        raise from_kind(kind, f"{self.host.name}: {message}")

    def _silent(self, why: str) -> DiskError:
        return DiskError(
            f"host {self.host.name} does not answer: {why}; check that this command waits for "
            f"input: {shlex.join(self._command)}"
        )

    def __enter__(self) -> "_Agent":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()


class _Measurement:
    """The measurement of a cluster."""

    def __init__(
        self, agents: Sequence[_Agent], directories: Sequence[str], seconds: float
    ) -> None:
        self._agents, self._directories, self._seconds = agents, list(directories), seconds
        self._channels = min(len(agent.host.addresses) for agent in agents)
        self._key = secrets.token_hex(16)

    def run(self, most_pairs: int) -> Balance:
        """Measure everything."""
        names = [agent.host.name for agent in self._agents]
        disks = [[Disk.from_dict(each) for each in found] for found in self._disks()]
        processors = self._all("processor", seconds=self._seconds / 2)
        hosts = tuple(
            MeasuredHost(name, tuple(own), ProcessorRates(**rates))
            for name, own, rates in zip(names, disks, processors, strict=True)
        )
        notes = [
            f"{name}: {note}"
            for name, own in zip(names, disks, strict=True)
            for note in shared_disks(own)
        ]
        notes += [
            f"{agent.host.name}: {unused} not measured; name as many addresses of each host"
            for agent in self._agents
            if (unused := ", ".join(agent.host.addresses[self._channels :]))
        ]
        for agent in self._agents:
            agent.ask("listen", addresses=list(agent.host.addresses[: self._channels]))
        for agent in self._agents:
            agent.ports = agent.answer()
        everyone = list(itertools.combinations(range(len(names)), 2))
        pairs = sample(len(names), most_pairs)
        links = [link for pair in pairs for link in self._pair(*pair)]
        if len(pairs) < len(everyone):
            notes.append(f"the pairs are a random sample of {len(everyone)}; --pairs measures more")
        channels = [self._of_host(name, links) if pairs else () for name in names]
        models = tuple(host.model("copy", own) for host, own in zip(hosts, channels, strict=True))
        shared = shared_rate(models, self._ring()) if pairs else math.inf
        copies = Use("copy", Cluster(models, shared))
        subject = f"{len(names)} hosts"
        return Balance(
            subject, hosts, tuple(links), len(pairs), len(everyone), (copies,), tuple(notes)
        )

    def _disks(self) -> list[Any]:
        for agent in self._agents:
            places = [each.replace("{host}", agent.host.name) for each in self._directories]
            agent.ask("disks", directories=places, seconds=self._seconds)
        return [agent.answer() for agent in self._agents]

    def _all(self, do: str, **given: Any) -> list[Any]:
        """Let all hosts do the same at the same time."""
        for agent in self._agents:
            agent.ask(do, **given)
        return [agent.answer() for agent in self._agents]

    def _pair(self, first: int, second: int) -> list[Link]:
        """Measure each channel from one host to the other, and back."""
        found = []
        for ends in ((first, second), (second, first)):
            source, target = (self._agents[end] for end in ends)
            for channel in range(self._channels):
                (rates,) = self._moves([(source, target, [channel])], self._seconds / 4)
                names = (source.host.name, target.host.name, target.host.addresses[channel])
                found.append(Link(*names, rates[0]))
        return found

    def _ring(self) -> float:
        """Let each host send to the next one by all channels; return the total rate."""
        after = [*self._agents[1:], self._agents[0]]
        every = list(range(self._channels))
        moves = [(a, b, every) for a, b in zip(self._agents, after, strict=True)]
        return sum(map(sum, self._moves(moves, self._seconds / 2)))

    def _moves(
        self, moves: Sequence[tuple[_Agent, _Agent, list[int]]], seconds: float
    ) -> list[list[float]]:
        """Do several transfers at once; return the rates of each one's channels."""
        receive: dict[_Agent, list[int]] = {}
        send: dict[_Agent, list[Any]] = {}
        for source, target, channels in moves:
            receive[target] = channels
            send[source] = [
                (target.host.addresses[k], target.ports[k], source.host.addresses[k])
                for k in channels
            ]
        parties = dict.fromkeys((*receive, *send))
        for agent in parties:
            agent.ask(
                "transfer", receive=receive.get(agent, []), send=send.get(agent, []),
                seconds=seconds, key=self._key,
            )  # fmt: skip
        found = {agent: agent.answer() for agent in parties}
        return [found[target] for _, target, _ in moves]

    def _of_host(self, name: str, links: Sequence[Link]) -> tuple[float, ...]:
        """Return the median rate of each channel of a host, over its pairs and both ways."""
        mine = [link.bytes_s for link in links if name in (link.source, link.target)]
        # The links of a pair are in the order of the channels, for each way.
        return tuple(statistics.median(mine[k :: self._channels]) for k in range(self._channels))


def sample(hosts: int, most: int) -> list[Pair]:
    """Choose pairs of hosts: all of them, or a random sample in which each host occurs.

    The sample has at least as many pairs as every host needs, and is the same in each call.
    """
    everyone = list(itertools.combinations(range(hosts), 2))
    if len(everyone) <= most:
        return everyone
    neighbours = {(first, first + 1) for first in (*range(0, hosts - 1, 2), hosts - 2)}
    others = [pair for pair in everyone if pair not in neighbours]
    more = random.Random(hosts).sample(others, max(most - len(neighbours), 0))
    return sorted([*neighbours, *more])
