"""Daemons of a pool in the test's process, and a link to them that can be interrupted."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from outcore import _core


def make_key(path: Path) -> Path:
    """Make a file with a new key of a pool."""
    path.touch(0o600)
    path.write_text(f"outcore-pool-key-1 {secrets.token_hex(32)}\n")
    return path


def daemon(home: Path, key: Path, role: str, name: str, **more: str) -> _core.Daemon:
    """Start a manager or an I/O server in the directory `name`, usually below `home`."""
    (home / name).mkdir(exist_ok=True)
    values = {
        "directory": f'"{home / name}"',
        "listen": '["tcp:127.0.0.1:0"]',
        "key_file": f'"{key}"',
    }
    config = home / f"{role}-{Path(name).name}.conf"
    lines = [f"{setting} = {value}\n" for setting, value in (values | more).items()]
    config.write_text("".join(lines))
    return _core.Daemon(role, str(config))


class Gate:
    """A port that forwards all bytes while it is open."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self.target: tuple[str, int] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Return the listening address, in the form that daemons write."""
        return "tcp:{}:{}".format(*self._listener.getsockname())

    def shut(self) -> None:
        """Hold back all further bytes."""
        self._open.clear()

    def open(self) -> None:
        """Forward the held bytes, and all further ones."""
        self._open.set()

    def close(self) -> None:
        """End all connections."""
        self.open()
        with self._lock:
            self._is_closed = True
            for each in (self._listener, *self._sockets):
                each.close()

    def _accept(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                if not self._keep(client):
                    return
                server = socket.create_connection(self.target or ("", 0))
                if not self._keep(server):
                    return
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()
        except OSError:
            pass

    def _keep(self, one: socket.socket) -> bool:
        """Register a socket for `close`; return false if the gate is closed already."""
        with self._lock:
            if self._is_closed:
                one.close()
            else:
                self._sockets.append(one)
            return not self._is_closed

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Served(NamedTuple):
    """A served pool: its address, and the file of its key."""

    url: str
    key: Path

    def key_of(self, name: str, uid: int, *gids: int) -> Path:
        """Return the key file of a user, and make it if necessary."""
        path = self.key.with_name(f"{name}.key")
        if not path.exists():
            _core.derive_key(str(self.key), name, uid, list(gids), str(path))
        return path


SCHEMES = {"tcp": "outcore://", "tls": "outcore+tls://", "unix": "outcore:"}


@contextmanager
def serve(home: Path, way: str = "tcp") -> Iterator[Served]:
    """Serve a pool of two servers below `home`, by ``"tcp"``, ``"tls"`` or ``"unix"``."""
    key = make_key(home / "pool.key")
    daemons: list[_core.Daemon] = []

    def start(role: str, name: str, **more: str) -> _core.Daemon:
        place = home / name / f"{role}.sock" if way == "unix" else "127.0.0.1:0"
        daemons.append(daemon(home, key, role, name, listen=f'["{way}:{place}"]', **more))
        return daemons[-1]

    try:
        address = start("manager", "a").addresses[0]
        for name in "ab":
            start("io", name, manager=f'["{address}"]')
        yield Served(address.replace(f"{way}:", SCHEMES[way]), key)
    finally:
        for each in reversed(daemons):
            each.stop()
