"""The agent of a host: it measures on request, one line of JSON for each request and answer.

It ends with its input, so it does not outlive the command that started it.
"""

import json
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outcore.balance.channels import Channels, Peer
from outcore.balance.disks import measure_disks
from outcore.balance.processor_rates import measure_processor
from outcore.errors import OutcoreError
from outcore.version import VERSION


class Agent:
    """The requests that an agent answers."""

    def __init__(self) -> None:
        self._channels: Channels | None = None

    def disks(self, directories: list[str], seconds: float) -> Any:
        """Measure the disks of some directories."""
        return [disk.to_dict() for disk in measure_disks([Path(d) for d in directories], seconds)]

    def processor(self, seconds: float) -> Any:
        """Measure memory and arithmetic."""
        return asdict(measure_processor(seconds))

    def listen(self, addresses: list[str]) -> Any:
        """Listen at each address; return the ports."""
        self.close()
        self._channels = Channels(addresses)
        return self._channels.ports

    def transfer(self, receive: list[int], send: list[Any], seconds: float, key: str) -> Any:
        """Take part in a transfer; return bytes per second of each received channel."""
        assert self._channels is not None, "listen comes first"
        peers = [Peer(*each) for each in send]
        return self._channels.transfer(receive, peers, seconds, bytes.fromhex(key))

    def close(self) -> None:
        """Stop listening."""
        if self._channels is not None:
            self._channels.close()


def serve(lines: Iterable[str], say: Callable[[str], None]) -> None:
    """Answer requests until their end."""
    agent = Agent()
    say(json.dumps({"found": {"host": socket.gethostname(), "version": VERSION}}))
    calls = {name: getattr(agent, name) for name in ("disks", "processor", "listen", "transfer")}
    try:
        for line in lines:
            request = json.loads(line)
            try:
                found = calls[request.pop("do")](**request)
            except OutcoreError as error:
                say(json.dumps({"error": {"kind": error.kind, "message": str(error)}}))
            except OSError as error:
                said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                say(json.dumps({"error": {"kind": "io", "message": said}}))
            else:
                say(json.dumps({"found": found}))
    finally:
        agent.close()
