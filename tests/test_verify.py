"""Reading a whole array, and checksums that detect a flipped bit."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from strategies import CHUNK_ORDERS, ORDERS, values

import outcore as oc
from outcore import _core
from outcore.errors import (
    BudgetError,
    CorruptError,
    IncompleteError,
    NotFoundError,
    TruncatedError,
)

SHAPE, CHUNKS = (70, 90), (32, 16)
COUNT = math.ceil(70 / 32) * math.ceil(90 / 16)


def make(path: Path, order: str = "C", chunk_order: str = "row-major") -> None:
    with oc.create_array(
        path, SHAPE, chunks=CHUNKS, order=order, chunk_order=chunk_order, reserve=False
    ) as array:
        array[...] = values(SHAPE, "f8")


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x01
    file.write_bytes(data)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
def test_recorded_checksums_match(tmp_path: Path, order: str, chunk_order: str) -> None:
    make(tmp_path / "A", order, chunk_order)
    first = oc.verify(tmp_path / "A")
    assert (first.chunks, first.bytes, first.checksums) == (COUNT, 70 * 90 * 8, "none")
    assert oc.verify(tmp_path / "A", record=True).checksums == "recorded"
    again = oc.verify(tmp_path / "A")
    assert again.checksums == "matched"
    assert "matches" in str(again)
    assert again.path == str(tmp_path / "A")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
@pytest.mark.parametrize("chunk", [(0, 0), (1, 3), (2, 5)])
def test_a_flipped_bit_is_found_and_placed(
    tmp_path: Path, order: str, chunk_order: str, chunk: tuple[int, int]
) -> None:
    make(tmp_path / "A", order, chunk_order)
    oc.verify(tmp_path / "A", record=True)
    grid = oc.open_array(tmp_path / "A").metadata.grid()
    _, offset = grid.locate(chunk)
    flip(tmp_path / "A/c/0/0", offset + 777)
    message = rf"chunk \({chunk[0]}, {chunk[1]}\) of .* 4096 bytes from {offset} on in c/0/0"
    with pytest.raises(CorruptError, match=message):
        oc.verify(tmp_path / "A")
    # Recording the checksums again would accept the damage.
    with pytest.raises(CorruptError, match=message):
        oc.verify(tmp_path / "A", record=True)
    flip(tmp_path / "A/c/0/0", offset + 777)
    assert oc.verify(tmp_path / "A").checksums == "matched"


def test_after_a_write_checksums_are_stale_not_wrong(tmp_path: Path) -> None:
    make(tmp_path / "A")
    oc.verify(tmp_path / "A", record=True)
    with oc.open_array(tmp_path / "A", "r+") as array:
        array[0, 0] = 5.0
    assert oc.verify(tmp_path / "A").checksums == "stale"
    assert oc.verify(tmp_path / "A", record=True).checksums == "recorded"
    assert oc.verify(tmp_path / "A").checksums == "matched"
    with oc.open_array(tmp_path / "A"):
        assert oc.verify(tmp_path / "A").checksums == "matched", "reading changes nothing"
    with oc.open_array(tmp_path / "A", "r+") as array:
        assert oc.verify(tmp_path / "A").checksums == "matched", "nor does opening it for writing"
        array[0, 0] = 6.0
        assert oc.verify(tmp_path / "A").checksums == "stale"


def test_the_file_holds_the_crc_of_each_chunk(tmp_path: Path) -> None:
    """The file is a line of JSON and little-endian numbers, row-major by chunk (docs/format.md)."""
    with oc.create_array(tmp_path / "A", (3, 4), "i2", chunks=(2, 2), order="F") as array:
        array[...] = np.arange(1, 13).reshape(3, 4)
    oc.verify(tmp_path / "A", record=True)
    line, _, data = (tmp_path / "A/outcore.checksums").read_bytes().partition(b"\n")
    chunks = [(1, 5, 2, 6), (3, 7, 4, 8), (9, 0, 10, 0), (11, 0, 12, 0)]
    sums = [_core.crc32c(struct.pack("<4h", *chunk)) for chunk in chunks]
    assert data == struct.pack("<4I", *sums)
    generation = oc.open_array(tmp_path / "A").info().generation
    expected = '{"format": 1, "generation": %d, "chunks": 4, "crc32c": %d}'
    assert line.decode() == expected % (generation, _core.crc32c(data))


def test_several_shard_files(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "A", 66_000, "u1", chunks=(1,), reserve=False) as array:
        array[65_530:65_540] = 3
    assert oc.verify(tmp_path / "A", record=True).chunks == 66_000
    flip(tmp_path / "A/c/1", 2 * 4096)
    with pytest.raises(CorruptError, match=r"chunk \(65538,\) .* from 8192 on in c/1"):
        oc.verify(tmp_path / "A")


@pytest.mark.parametrize("at", [0, 5, 30, -1])
def test_damaged_checksums(tmp_path: Path, at: int) -> None:
    make(tmp_path / "A")
    oc.verify(tmp_path / "A", record=True)
    flip(tmp_path / "A/outcore.checksums", at)
    with pytest.raises(CorruptError, match=r"outcore\.checksums is damaged"):
        oc.verify(tmp_path / "A")


def test_what_opening_finds_is_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        oc.verify(tmp_path / "none")
    make(tmp_path / "A")
    flip(tmp_path / "A/c/0/0", -1)
    with pytest.raises(CorruptError, match="CRC-32C"):
        oc.verify(tmp_path / "A")
    make(tmp_path / "B")
    with (tmp_path / "B/c/0/0").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(TruncatedError):
        oc.verify(tmp_path / "B", record=True)
    make(tmp_path / "C")
    oc.open_array(tmp_path / "C", "r+").mark("incomplete", "a test")
    with pytest.raises(IncompleteError):
        oc.verify(tmp_path / "C")


def test_memory_is_bounded(tmp_path: Path) -> None:
    make(tmp_path / "A")
    assert oc.verify(tmp_path / "A", memory=4096).chunks == COUNT
    with pytest.raises(BudgetError, match="need 4096"):
        oc.verify(tmp_path / "A", memory=4095)


def test_progress_is_told(tmp_path: Path) -> None:
    make(tmp_path / "A")
    told: list[float] = []
    oc.verify(tmp_path / "A", progress=lambda done, left: told.append(done))
    assert told[-1] == 1.0
