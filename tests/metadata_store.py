"""A pool's metadata store, read and changed as docs/format.md describes it."""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import google_crc32c


@contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    """Open the store of a stopped pool in its first directory; commit at the end."""
    with closing(sqlite3.connect(directory / "manager/metadata.sqlite")) as store, store:
        yield store


def put(store: sqlite3.Connection, key: bytes, value: bytes, version: int) -> None:
    """Write a record with its checksum."""
    crc = google_crc32c.value(key + struct.pack("<Q", version) + value)
    row = (key, value, version, crc)
    store.execute("REPLACE INTO entries (key, value, version, sum) VALUES (?, ?, ?, ?)", row)


def records(store: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
    """List keys and values."""
    return store.execute("SELECT key, value FROM entries ORDER BY key").fetchall()
