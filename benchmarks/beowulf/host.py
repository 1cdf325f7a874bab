"""A process on a host of the testbed: it exchanges tokens, and copies files.

It reads lines of JSON, each one command, and answers each with a line. Times are those of the clock
that all processes of the machine share. A transfer over several channels sends its parts over all
of them, as outcore's clients do.
"""

import contextlib
import itertools
import json
import mmap
import os
import queue
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

BLOCK_BYTES = 128 << 10
FILE_BLOCKS = 64
PACKET_BYTES = 1448
"""Payload of an Ethernet packet of TCP. Smaller parts of a token would fill no packet."""

_AHEAD = 4

Blocks: TypeAlias = "queue.Queue[mmap.mmap | None]"
"""Blocks from one thread to others; `None` is the end."""


class Host:
    """The commands of the process.

    Parameters
    ----------
    addresses
        The host's address in each network.
    disks
        Directories, one on each disk.
    """

    def __init__(self, addresses: Sequence[str], disks: Sequence[Path]) -> None:
        self._listening = [socket.create_server((address, 0)) for address in addresses]
        self._disks = disks
        self._to: list[socket.socket] = []
        self._from: list[socket.socket] = []

    def ports(self) -> list[int]:
        """Return the port in each network."""
        return [each.getsockname()[1] for each in self._listening]

    def connect(self, to: Sequence[tuple[str, int]]) -> None:
        """Connect to a partner over some networks, once for each disk."""
        self._to = [
            socket.create_connection((host, port)) for host, port in to for _ in self._disks
        ]
        for one in self._to:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def accept(self, channels: int) -> None:
        """Accept the connections of a partner over the first networks."""
        listening = self._listening[:channels]
        self._from = [each.accept()[0] for each in listening for _ in self._disks]
        for one in self._from:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close all connections."""
        for one in (*self._to, *self._from):
            one.close()
        self._to, self._from = [], []

    def begin_tokens(self, nbytes: int, until: float) -> tuple[int, float, float]:
        """Send tokens and receive each one back; return the bytes both ways, begin and end."""
        token, count = bytearray(nbytes), 0
        begin = now = time.monotonic()
        while now < until:
            _send_token(self._to, token, count)
            _receive_token(self._to, token, count)
            count += 1
            now = time.monotonic()
        for one in self._to:
            one.shutdown(socket.SHUT_WR)
        return 2 * nbytes * count, begin, now

    def return_tokens(self, nbytes: int) -> None:
        """Receive tokens and send each one back, until the partner ends."""
        token, count = bytearray(nbytes), 0
        while _receive_token(self._from, token, count):
            _send_token(self._from, token, count)
            count += 1

    def copy(self, sends: bool, receives: bool, begin: float, end: float) -> int:
        """Copy the disks' files, at a partner or here; return the bytes written from begin to end.

        A host that sends reads for its partner, and one that receives writes for it. A host that
        does neither copies on its own disks.
        """
        written = _Count(begin, end)
        threads: list[threading.Thread] = []

        def start(run: Callable[..., None], *given: Any) -> None:
            threads.append(threading.Thread(target=run, args=given))
            threads[-1].start()

        for number, disk in enumerate(self._disks):
            if sends or not receives:
                blocks: Blocks = queue.Queue(_AHEAD)
                ways = self._to[number :: len(self._disks)]
                start(_read, disk / "source", blocks, end, len(ways) if sends else 1)
                for way in ways if sends else ():
                    start(_send_blocks, way, blocks, end)
                if not sends:
                    start(_write, disk / "target", blocks, written)
            if receives:
                arrived: Blocks = queue.Queue(_AHEAD)
                start(_receive, self._from[number :: len(self._disks)], arrived)
                start(_write, disk / "target", arrived, written)
        for thread in threads:
            thread.join()
        return written.nbytes


def _parts(channels: Sequence[socket.socket], nbytes: int, count: int) -> list[tuple[int, int]]:
    """Return the bounds of each channel's part of a token; small tokens alternate."""
    parts = max(min(len(channels), nbytes // PACKET_BYTES), 1)
    bounds = [(nbytes * i // parts, nbytes * (i + 1) // parts) for i in range(parts)]
    empty = [(0, 0)] * (len(channels) - parts)
    shift = count % len(channels) if parts == 1 else 0
    return (empty + bounds if shift else bounds + empty)[: len(channels)]


def _send_token(channels: Sequence[socket.socket], token: bytearray, count: int) -> None:
    """Send a token, its parts at the same time."""
    bounds = _parts(channels, len(token), count)
    left = {one: memoryview(token)[a:b] for one, (a, b) in zip(channels, bounds, strict=True) if b}
    while left:
        _, ready, _ = select.select([], left, [])
        for one in ready:
            left[one] = left[one][one.send(left[one], socket.MSG_DONTWAIT) :]
            if not left[one]:
                del left[one]


def _receive_token(channels: Sequence[socket.socket], token: bytearray, count: int) -> bool:
    """Receive a token; return `False` at the end."""
    bounds = _parts(channels, len(token), count)
    for one, (begin, end) in zip(channels, bounds, strict=True):
        view = memoryview(token)[begin:end]
        while view:
            nbytes = one.recv_into(view, 0, socket.MSG_WAITALL)
            if not nbytes:
                return False
            view = view[nbytes:]
    return True


class _Count:
    """Bytes written between two moments."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self.end = begin, end
        self._lock = threading.Lock()
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that were written just now."""
        if self._begin <= time.monotonic() < self.end:
            with self._lock:
                self.nbytes += nbytes


def _read(path: Path, blocks: Blocks, end: float, takers: int) -> None:
    """Read a file over and over until `end`, for threads that take its blocks."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for number in itertools.count():
            if time.monotonic() >= end:
                return
            block = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as direct I/O requires
            os.preadv(file, [block], number % FILE_BLOCKS * BLOCK_BYTES)
            blocks.put(block)
    finally:
        os.close(file)
        for _ in range(takers):
            blocks.put(None)


def _write(path: Path, blocks: Blocks, written: _Count) -> None:
    """Write blocks to a file until their end; those that come too late are dropped."""
    file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        for number in itertools.count():
            block = blocks.get()
            if block is None:
                return
            if time.monotonic() < written.end:
                os.pwritev(file, [block], number % FILE_BLOCKS * BLOCK_BYTES)
                written.add(BLOCK_BYTES)
    finally:
        os.close(file)


def _send_blocks(way: socket.socket, blocks: Blocks, end: float) -> None:
    while (block := blocks.get()) is not None:
        if time.monotonic() < end:
            way.sendall(block)
    # Drop the bytes on their way, which would keep a slow network busy.
    way.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    way.close()


def _receive(ways: Sequence[socket.socket], arrived: Blocks) -> None:
    """Receive blocks over all channels until their end."""
    threads = [threading.Thread(target=_receive_blocks, args=(way, arrived)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived.put(None)


def _receive_blocks(way: socket.socket, arrived: Blocks) -> None:
    with contextlib.suppress(ConnectionResetError):
        while True:
            block = mmap.mmap(-1, BLOCK_BYTES)
            view = memoryview(block)
            while view:
                nbytes = way.recv_into(view, 0, socket.MSG_WAITALL)
                if not nbytes:
                    return
                view = view[nbytes:]
            arrived.put(block)


def main() -> None:
    given = json.loads(sys.argv[1])
    host = Host(given["addresses"], [Path(disk) for disk in given["disks"]])
    print("ready", flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(host, call.pop("do"))(**call)), flush=True)


if __name__ == "__main__":
    main()
