"""The daemons of a pool on a testbed: on its limited disks, and on one of its hosts."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.testbed.bed import Testbed
from benchmarks.testbed.hosts import Host

MOST_SOCKET_BYTES = 108
"""Limit of the path of a UNIX socket, including its final zero byte (unix(7))."""

MAIN = "import sys; from outcore.cli import main; sys.exit(main())"


class BedPool:
    """A manager, and an I/O server in each directory, until the testbed ends.

    Parameters
    ----------
    bed
        The testbed of the daemons.
    state
        Directory for the manager's files, the key and the settings; it is created.
    directories
        One directory for each I/O server.
    host
        The host of all daemons; by default this machine.
    hosts
        The host of each I/O server, if they differ from that of the manager.
    networks
        The host's networks in which the I/O servers listen: their channels.
    is_local
        Let the I/O servers listen at UNIX sockets only, for clients on this machine.
    has_page
        Give the manager a page for people.

    Attributes
    ----------
    url, key_file
        URL and key file for clients.
    local_url
        The same pool by a UNIX socket, for clients on the manager's machine; `None` if the
        directory's path is too long for one.
    metrics
        Address of the manager's metrics, on its host.
    watched
        Addresses of all metrics, and of the page if there is one.
    """

    def __init__(
        self,
        bed: Testbed,
        state: Path,
        directories: Sequence[Path],
        *,
        host: Host | None = None,
        hosts: Sequence[Host] = (),
        networks: Sequence[int] = (0,),
        is_local: bool = False,
        has_page: bool = False,
    ) -> None:
        state.mkdir()
        self.key_file = state / "key"
        self.key_file.write_text(f"outcore-pool-key-1 {secrets.token_hex(32)}\n")
        self.key_file.chmod(0o600)
        self._bed, self._state = bed, state
        listen = _addresses(host, networks)
        socket = state / "socket"
        has_socket = len(os.fsencode(socket)) < MOST_SOCKET_BYTES
        ways = [listen[0], f"unix:{socket}"] if has_socket else listen[:1]
        page = {"page": "127.0.0.1:0"} if has_page else {}
        manager = self._start("manager", "manager", host, directory=str(state), listen=ways, **page)
        servers = []
        for number, directory in enumerate(directories):
            directory.mkdir(exist_ok=True)
            where = {"directory": str(directory), "manager": manager["listen"][:1]}
            its = hosts[number] if hosts else host
            own = _addresses(its, networks)
            if is_local and has_socket:
                own = [f"unix:{state / f'io{number}'}"]
            servers.append(self._start("io", f"io{number}", its, **where, listen=own))
        self.url = f"outcore://{manager['listen'][0].removeprefix('tcp:')}"
        self.local_url = f"outcore:{socket}" if has_socket else None
        self.metrics: str = manager["metrics"]
        self.watched: list[str] = [said["metrics"] for said in (manager, *servers)]
        if has_page:
            self.watched.append(manager["page"])

    def _start(self, role: str, name: str, host: Host | None, **settings: Any) -> dict[str, Any]:
        config = self._state / f"{name}.conf"
        settings |= {"key_file": str(self.key_file), "metrics": "127.0.0.1:0"}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        config.write_text("".join(lines))
        process = self._bed.start(
            [sys.executable, "-c", MAIN, "serve", role, "--config", config, "--json"],
            host,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                break
        said: dict[str, Any] = json.loads(text or "{}")
        if "listen" not in said:
            raise OSError(f"{name} does not start: {said or 'it said nothing'}")
        return said


def _addresses(host: Host | None, networks: Sequence[int]) -> list[str]:
    names = [host.addresses[network] for network in networks] if host else ["127.0.0.1"]
    return [f"tcp:{name}:0" for name in names]
