"""Transfers over TCP between agents, by one channel or several at once."""

import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from outcore.errors import DiskError

_BLOCK_BYTES = 256 << 10
_PATIENCE_S = 20.0
_WARM_UP = 0.25
"""Share of a transfer before the count begins: the connection grows its window meanwhile."""


class Peer(NamedTuple):
    """The end of a channel on another host, and the own address to use."""

    address: str
    port: int
    own: str


class Channels:
    """The channels of an agent: one listening socket in each network of its host.

    Parameters
    ----------
    addresses
        The host's address in each network.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._listening: list[socket.socket] = []
        try:
            for address in addresses:
                family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
                self._listening.append(socket.create_server((address, 0), family=family))
        except OSError as error:
            self.close()
            raise DiskError(
                f"cannot listen at {address}: {error.strerror}; give an address of this host"
            ) from None

    @property
    def ports(self) -> list[int]:
        """The port of each channel."""
        return [each.getsockname()[1] for each in self._listening]

    def close(self) -> None:
        """Stop listening."""
        for each in self._listening:
            each.close()

    def transfer(
        self, receive: Sequence[int], send: Sequence[Peer], seconds: float, key: bytes
    ) -> list[float]:
        """Send and receive at the same time; return bytes per second of each received channel.

        Parameters
        ----------
        receive
            Numbers of the channels on which one peer each sends.
        send
            Peers to which to send.
        seconds
            Duration.
        key
            Bytes with which each sender begins: others on the network do not know them.
        """
        with ThreadPoolExecutor(max(len(receive) + len(send), 1)) as threads:
            sent = [threads.submit(_send, peer, seconds, key) for peer in send]
            received = [
                threads.submit(_receive, self._listening[number], seconds, key)
                for number in receive
            ]
            for each in sent:
                each.result()
            return [each.result() for each in received]


def _send(peer: Peer, seconds: float, key: bytes) -> None:
    block = os.urandom(_BLOCK_BYTES)
    try:
        with socket.create_connection(
            (peer.address, peer.port), _PATIENCE_S, source_address=(peer.own, 0)
        ) as one:
            one.settimeout(_PATIENCE_S + seconds)
            one.sendall(key)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                one.sendall(block)
            one.shutdown(socket.SHUT_WR)
            one.recv(1)
    except OSError as error:
        raise DiskError(
            f"cannot send from {peer.own} to {peer.address}: {error.strerror or error}; check that "
            "both addresses are in one network, without a firewall"
        ) from None


def _receive(listening: socket.socket, seconds: float, key: bytes) -> float:
    try:
        with _accepted(listening, key) as one:
            one.settimeout(_PATIENCE_S + seconds)
            return _counted(one, seconds * _WARM_UP)
    except OSError as error:
        where = listening.getsockname()[0]
        raise DiskError(
            f"nothing arrives at {where}: {error.strerror or error}; check that the hosts reach "
            "this address"
        ) from None


def _accepted(listening: socket.socket, key: bytes) -> socket.socket:
    listening.settimeout(_PATIENCE_S)
    while True:
        one, _ = listening.accept()
        one.settimeout(_PATIENCE_S)
        given = one.recv(len(key), socket.MSG_WAITALL)
        if secrets.compare_digest(given, key):
            return one
        one.close()


def _counted(one: socket.socket, warm_up_s: float) -> float:
    """Read to the end; return bytes per second after the warm-up."""
    buffer = bytearray(1 << 20)
    begin = last = time.monotonic()
    counted, total = 0, 0
    counts_from = None
    while nbytes := one.recv_into(buffer):
        last = time.monotonic()
        total += nbytes
        if counts_from is not None:
            counted += nbytes
        elif last - begin >= warm_up_s:
            counts_from = last
    if counts_from is None or not counted:
        return total / max(last - begin, 1e-9)
    return counted / max(last - counts_from, 1e-9)
