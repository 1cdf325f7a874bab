"""TCP connections of a process to those of other hosts, whose systems close them when it dies.

Each process listens while all of them meet. The one of the higher rank connects to the other, both
say who they are, and from then on the connection is silent. It ends with a farewell if the process
leaves the call, and without one if the process or its host dies.
"""

import contextlib
import secrets
import select
import selectors
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self

from outcore._util.this_machine import own_host

_HELLO = struct.Struct("<16sI")
_FAREWELL = b"."

_MOST_WAITING = 1024
"""Connections that wait until a process accepts them; the system may allow fewer."""

_MOST_S = 5.0
"""Longest time until all are connected."""

_POLL_S = 0.01

_unreachable: set[str] = set()
"""Hosts behind a firewall, so that later calls do not wait for them."""


class Address(NamedTuple):
    """The address at which a process listens, and a secret that others must know."""

    host: str
    port: int
    token: bytes


class Links:
    """The connections of a process in one call. It listens until `connect` ends.

    Attributes
    ----------
    address
        Where the others find this process.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=_MOST_WAITING)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.address = Address(own_host(), port, secrets.token_bytes(16))
        self._linked: dict[int, tuple[int, socket.socket]] = {}
        self._events = select.epoll()

    def fileno(self) -> int:
        """Return a handle that is readable when a connection ends."""
        return self._events.fileno()

    def connect(
        self, all_of: Sequence[Address | None], rank: int, others: Collection[int], timeout_s: float
    ) -> None:
        """Connect to other processes, which call this at the same time.

        A connection that fails, or takes longer than 5 seconds, is left out.

        Parameters
        ----------
        all_of
            The addresses of all processes, of which this one is number `rank`.
        others
            The ranks of those to connect to.
        timeout_s
            Time after which the system closes the connection to a host that has no power.
        """
        known = {other: at for other in others if (at := all_of[other]) is not None}
        with self._listener, _Meeting(self._listener, self.address.token, rank, known) as meeting:
            found = meeting.run()
        _unreachable.update(known[other].host for other in known if other not in found)
        for other, connection in found.items():
            _end_after(connection, timeout_s)
            self._linked[connection.fileno()] = other, connection
            self._events.register(connection, select.EPOLLIN)

    def ended(self) -> list[int]:
        """Return the ranks of the processes that have died since the last call."""
        found = []
        for handle, _ in self._events.poll(0):
            rank, connection = self._linked[handle]
            try:
                said = connection.recv(1)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            if not said:
                found.append(rank)
            self._events.unregister(handle)
            connection.close()
            del self._linked[handle]
        return found

    def close(self) -> None:
        """Leave the call."""
        self._listener.close()
        self._events.close()
        for _, connection in self._linked.values():
            _leave(connection)
        self._linked = {}


class _Peer(NamedTuple):
    """A new connection; `rank` is that of the process to which this one connects."""

    connection: socket.socket
    rank: int | None
    heard: bytearray


class _Meeting:
    """The begin of the connections of a process, within its ``with``.

    Parameters
    ----------
    listener, token, rank
        Those of this process.
    known
        The addresses of the others.
    """

    def __init__(
        self, listener: socket.socket, token: bytes, rank: int, known: Mapping[int, Address]
    ) -> None:
        self._listener, self._token, self._rank, self._known = listener, token, rank, known
        self._wanted = {other for other, at in known.items() if at.host not in _unreachable}
        self._found: dict[int, socket.socket] = {}
        self._begun = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for key in list(self._begun.get_map().values()):
            if key.data is not None:
                _leave(key.data.connection)
        self._begun.close()
        for connection in self._found.values() if kind else ():
            _leave(connection)

    def run(self) -> dict[int, socket.socket]:
        """Return the connections to those processes that can be reached."""
        end_s = time.monotonic() + _MOST_S
        self._begun.register(self._listener, selectors.EVENT_READ)
        for other in [other for other in self._wanted if other < self._rank]:
            self._dial(other)
        while len(self._found) < len(self._wanted) and (left_s := end_s - time.monotonic()) > 0:
            for key, event in self._begun.select(left_s):
                if key.data is None:
                    self._accept()
                else:
                    self._talk(key.data, event)
        return self._found

    def _dial(self, other: int) -> None:
        try:
            peer = _Peer(socket.socket(), other, bytearray())
        except OSError:  # This process has too many files.
            self._wanted.discard(other)
            return
        peer.connection.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                peer.connection.connect(self._known[other][:2])
            self._begun.register(peer.connection, selectors.EVENT_WRITE, peer)
        except OSError:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            peer = _Peer(self._listener.accept()[0], None, bytearray())
        except OSError:
            time.sleep(_POLL_S)  # The client has left, or this process has too many files.
            return
        peer.connection.setblocking(False)
        self._begun.register(peer.connection, selectors.EVENT_READ, peer)

    def _talk(self, peer: _Peer, event: int) -> None:
        """Say or hear who is at the two ends of a connection."""
        try:
            if event & selectors.EVENT_WRITE:
                assert peer.rank is not None
                self._say(peer.connection, peer.rank)
                self._begun.modify(peer.connection, selectors.EVENT_READ, peer)
                return
            said = peer.connection.recv(_HELLO.size - len(peer.heard))
            peer.heard.extend(said)
            if said and len(peer.heard) < _HELLO.size:
                return
            token, other = _HELLO.unpack(peer.heard)
            if token != self._token or other not in self._wanted:
                raise OSError
            if peer.rank is None:
                self._say(peer.connection, other)
            self._begun.unregister(peer.connection)
            self._found[other] = peer.connection
        except (OSError, struct.error):
            self._drop(peer)

    def _say(self, connection: socket.socket, other: int) -> None:
        connection.send(_HELLO.pack(self._known[other].token, self._rank))

    def _drop(self, peer: _Peer) -> None:
        """Close a connection to a process that cannot be reached, or of a program that is none."""
        with contextlib.suppress(KeyError):
            self._begun.unregister(peer.connection)
        _leave(peer.connection)
        if peer.rank is not None:
            self._wanted.discard(peer.rank)


def _leave(connection: socket.socket) -> None:
    """Close a connection of a process that lives."""
    with contextlib.suppress(OSError):
        connection.send(_FAREWELL)
    connection.close()


def _end_after(connection: socket.socket, timeout_s: float) -> None:
    """Let the system close a connection whose other host says nothing for about this time."""
    idle_s = min(max(int(timeout_s / 2), 1), 60)
    step_s = min(max(int(timeout_s / 8), 1), 15)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
