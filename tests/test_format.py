"""The bytes on disk against bytes that this file builds from the Zarr specification.

Sources: Zarr core specification 3.0; sharding codec 1.0, "Binary shard format"; RFC 3720, appendix
B.4 (CRC-32C). ``golden/*.hex`` are the same bytes as ``docs/format.md`` quotes.
"""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import CHUNK_ORDERS, ORDERS

import outcore as oc
from outcore import _core

GOLDEN = Path(__file__).parent / "golden"
PAGE = 4096


def crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit: reflected polynomial 0x82F63B78, all ones before and after."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def curve_position(chunk_order: str, at: tuple[int, int], counts: tuple[int, int]) -> int:
    """Return a chunk's place along its order; sorting closes the gaps."""
    row, column = at
    if chunk_order == "row-major":
        return row * counts[1] + column
    if chunk_order == "column-major":
        return column * counts[0] + row
    side = 1
    while side < max(counts):
        side *= 2
    if chunk_order == "z-order":
        bits = range(side.bit_length())
        return sum((row >> b & 1) << (2 * b + 1) | (column >> b & 1) << 2 * b for b in bits)
    # The textbook walk along the plane's Hilbert curve, quadrant by quadrant.
    place, half = 0, side // 2
    x, y = row, column
    while half:
        right, up = int(x & half > 0), int(y & half > 0)
        place += half * half * (3 * right ^ up)
        if not up:
            if right:
                x, y = side - 1 - x, side - 1 - y
            x, y = y, x
        half //= 2
    return place


def shard(
    model: np.ndarray[Any, Any], chunks: tuple[int, int], order: str, chunk_order: str
) -> bytes:
    """Build a shard file: slots of whole pages, (offset, length) of each chunk, their CRC-32C."""
    counts = (-(-model.shape[0] // chunks[0]), -(-model.shape[1] // chunks[1]))
    length = chunks[0] * chunks[1] * model.itemsize
    slot = -(-length // PAGE) * PAGE
    numbers = list(itertools.product(range(counts[0]), range(counts[1])))
    on_disk = sorted(numbers, key=lambda at: curve_position(chunk_order, at, counts))
    body = bytearray(slot * len(numbers))
    for place, (row, column) in enumerate(on_disk):
        chunk = np.zeros(chunks, model.dtype)
        part = model[row * chunks[0] :, column * chunks[1] :][: chunks[0], : chunks[1]]
        chunk[: part.shape[0], : part.shape[1]] = part
        body[place * slot : place * slot + length] = chunk.tobytes(order)
    index = b"".join(struct.pack("<QQ", on_disk.index(at) * slot, length) for at in numbers)
    return bytes(body) + index + struct.pack("<I", crc32c(index))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((5, 7), (2, 3)), ((8, 8), (2, 2)), ((40, 60), (32, 40)), ((3, 9), (1, 2))],
)
def test_shard_files(
    tmp_path: Path, order: str, chunk_order: str, shape: tuple[int, int], chunks: tuple[int, int]
) -> None:
    model = np.arange(1, 1 + shape[0] * shape[1], dtype="<f8").reshape(shape)
    array = oc.create_array(
        tmp_path / "A", shape, "f8", chunks=chunks, order=order, chunk_order=chunk_order
    )
    array[...] = model
    assert (tmp_path / "A/c/0/0").read_bytes() == shard(model, chunks, order, chunk_order)


def test_parts_written_one_by_one_leave_the_same_bytes(tmp_path: Path) -> None:
    model = np.arange(1, 36, dtype="<i4").reshape(5, 7)
    array = oc.create_array(tmp_path / "A", (5, 7), "i4", chunks=(2, 3), order="F")
    for row, column in itertools.product(range(5), range(7)):
        array[row, column] = model[row, column]
    assert (tmp_path / "A/c/0/0").read_bytes() == shard(model, (2, 3), "F", "column-major")


def test_every_chunk_begins_on_a_page(tmp_path: Path) -> None:
    for number, chunks in enumerate([(1, 1), (3, 5), (32, 16), (33, 16)]):
        grid = oc.create_array(tmp_path / f"{number}", (66, 40), chunks=chunks).metadata.grid()
        length = chunks[0] * chunks[1] * 8
        assert grid.slot_bytes == -(-length // PAGE) * PAGE
        for at in itertools.product(*map(range, grid.counts)):
            assert grid.locate(at)[1] % PAGE == 0


def test_golden_shard(tmp_path: Path) -> None:
    """The example of docs/format.md: int16, 3 by 4, chunks of 2 by 2, Fortran order."""
    array = oc.create_array(tmp_path / "A", (3, 4), "i2", chunks=(2, 2), order="F")
    array[...] = np.arange(1, 13).reshape(3, 4)
    data = (tmp_path / "A/c/0/0").read_bytes()
    assert len(data) == 4 * PAGE + 4 * 16 + 4
    for number in range(4):
        slot = data[number * PAGE : (number + 1) * PAGE]
        assert not any(slot[8:]), "padding is zeros"
    chunks = b"".join(data[n * PAGE : n * PAGE + 8] for n in range(4))
    found = {"chunks": chunks.hex(), "index": data[4 * PAGE :].hex()}
    lines = (GOLDEN / "shard-i2-3x4-F.hex").read_text().splitlines()
    assert found == dict(line.split(": ") for line in lines if not line.startswith("#"))


def test_golden_metadata(tmp_path: Path) -> None:
    oc.create_array(
        tmp_path / "A", (3, 4), "i2", chunks=(2, 2), order="F", dims=("row", "column"),
        attributes={"unit": "m"},
    )  # fmt: skip
    found = json.loads((tmp_path / "A/zarr.json").read_text())
    assert found == json.loads((GOLDEN / "zarr-i2-3x4-F.json").read_text())


def test_metadata_of_a_matrix_in_c_order(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", (5, 7), "c16", chunks=(2, 3))
    document = json.loads((tmp_path / "A/zarr.json").read_text())
    assert document["data_type"] == "complex128"
    assert document["fill_value"] == [0.0, 0.0]
    # One shard: the shape rounded up to whole chunks.
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [6, 9]
    (codec,) = document["codecs"]
    assert codec["name"] == "sharding_indexed"
    assert codec["configuration"]["index_location"] == "end"
    assert [c["name"] for c in codec["configuration"]["codecs"]] == ["bytes"]
    assert [c["name"] for c in codec["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
    assert "dimension_names" not in document


def test_checksum_agrees_with_the_specification() -> None:
    for data, sum_ in [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
    ]:
        assert crc32c(data) == _core.crc32c(data) == sum_


def test_generation_file(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", 3)
    before = int((tmp_path / "A/outcore.generation").read_text())
    assert oc.open_array(tmp_path / "A").info().generation == before
    with oc.open_array(tmp_path / "A", "r+") as array:
        assert array.info().generation == before
        array[0] = 1
        assert array.info().generation == before + 1
    assert (tmp_path / "A/outcore.generation").read_bytes() == str(before + 1).encode()
