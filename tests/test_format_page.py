"""docs/format.md against the code: the vectors of the page equal the written bytes.

The page marks each checked vector with ``<!-- golden: name -->``; `test_format.py` builds the same
bytes from the Zarr specification.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from strategies import CHUNK_ORDERS

import outcore as oc
from outcore._core import Grid
from outcore.linalg._output.journal import Journal

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/format.md").read_text()
GOLDEN = Path(__file__).parent / "golden"


def marked(name: str) -> str:
    """Return the code block or table that follows a mark."""
    found = re.search(
        rf"<!-- golden: {re.escape(name)} -->\n(```\w+\n(.*?)\n```|.*?\n\n)", PAGE, re.S
    )
    assert found, f"docs/format.md has no mark {name!r}"
    return found[2] or found[1]


def crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.fixture
def array(tmp_path: Path) -> Path:
    """Write the example of the page."""
    made = oc.create_array(
        tmp_path / "A", (3, 4), "i2", chunks=(2, 2), order="F", dims=("row", "column"),
        attributes={"unit": "m"},
    )  # fmt: skip
    made[...] = np.arange(1, 13).reshape(3, 4)
    return tmp_path / "A"


@pytest.fixture
def factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Factor the example of the page, and keep the journal."""
    monkeypatch.setattr(Journal, "remove", lambda self: None)
    with oc.create_array(tmp_path / "A", (2, 2), order="F") as A:
        A[...] = [[0, 2], [4, 1]]
    oc.linalg.lu_factor(tmp_path / "A", memory=1_000_000)
    return tmp_path / "A.lu"


def test_metadata(array: Path) -> None:
    quoted = json.loads(marked("zarr-i2-3x4-F.json"))
    assert quoted == json.loads((array / "zarr.json").read_text())
    assert quoted == json.loads((GOLDEN / "zarr-i2-3x4-F.json").read_text())


def test_shard_file(array: Path) -> None:
    name, data = "shard-i2-3x4-F.hex", (array / "c/0/0").read_bytes()
    slots, tail = b"", b""
    for line in marked(name).splitlines():
        bytes_ = bytes.fromhex("".join(re.findall(r"(?<=\s)[0-9a-f]{4}(?:[0-9a-f]{4})*\b", line)))
        if line.startswith("slot"):
            slots += bytes_
        else:
            tail += bytes_
    assert slots == b"".join(data[at : at + 8] for at in range(0, 4 * 4096, 4096))
    assert tail == data[4 * 4096 :]
    golden = (GOLDEN / name).read_text()
    assert f"chunks: {slots.hex()}\nindex: {tail.hex()}" in golden


def test_chunk_orders(tmp_path: Path) -> None:
    names, *rows = marked("chunk orders").splitlines()
    numbers = np.array([row.split() for row in rows], int).reshape(3, 4, 4)
    assert set(names.split()) == set(CHUNK_ORDERS)
    for column, name in enumerate(names.split()):
        grid = oc.create_array(
            tmp_path / name, (3, 4), chunks=(1, 1), chunk_order=name
        ).metadata.grid()
        for at in itertools.product(range(3), range(4)):
            assert grid.locate(at)[1] == 4096 * numbers[at[0], column, at[1]]


def test_chunks_in_blocks() -> None:
    rows = marked("chunks in blocks").splitlines()
    numbers = [[int(slot) for slot in row.split()] for row in rows]
    chunk_order, align, places, growing = "blocks", 4096, None, False
    grid = Grid((3, 4), (1, 1), 8, "C", chunk_order, align, places, growing, (2, 3))
    for i, j in itertools.product(range(3), range(4)):
        assert grid.locate((i, j))[1] == 4096 * numbers[i][j]


def test_several_shard_files(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", 70_000, "u1", chunks=(1,), reserve=False)
    assert sorted(path.name for path in (tmp_path / "A/c").iterdir()) == ["0", "1"]
    assert list(array.metadata.grid().shard_shape) == [65_536]
    assert "70,000 chunks of one element make `c/0` and `c/1`, of 65,536" in PAGE


def test_checksums(array: Path) -> None:
    oc.verify(array, record=True)
    header, sums = marked("checksums").splitlines()
    data = bytes.fromhex(sums)
    assert (array / "outcore.checksums").read_bytes() == header.encode() + b"\n" + data
    assert json.loads(header)["crc32c"] == crc32c(data)
    chunk = (array / "c/0/0").read_bytes()[4096:4104]  # (1, 0), the third in row-major order
    assert data[8:12] == crc32c(chunk).to_bytes(4, "little")


def test_factors(factors: Path) -> None:
    files = {"lu": (factors / "lu/c/0/0").read_bytes(), "piv": (factors / "piv/c/0").read_bytes()}
    expected = {name: bytearray(len(data)) for name, data in files.items()}
    for line in marked("factors").splitlines():
        name, offset, *words = line.split()
        data = bytes.fromhex("".join(word for word in words if "." not in word))
        expected[name][int(offset) : int(offset) + len(data)] = data
    assert files == {name: bytes(data) for name, data in expected.items()}


def test_keys_of_factors(factors: Path) -> None:
    documented = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|([^|]*)\|",
                     marked("keys of a complete factor"), re.M))))  # fmt: skip
    own = json.loads((factors / "zarr.json").read_text())["attributes"]["outcore"]
    assert documented == set(own)


def test_journal(factors: Path) -> None:
    quoted = [line.split("\t") for line in marked("journal").splitlines()]
    assert all(f"{crc32c(text.encode()):08x}" == sum_ for text, sum_ in quoted)
    written = [line.split("\t") for line in (factors / "journal").read_text().splitlines()]
    assert all(f"{crc32c(text.encode()):08x}" == sum_ for text, sum_ in written)
    head, *records = (json.loads(text) for text, _ in quoted)
    head_written, *records_written = (json.loads(text) for text, _ in written)
    # These depend on the machine.
    head |= {name: head_written[name] for name in ("source", "modified_ns", "kernels", "threads")}
    assert list(head.items()) == list(head_written.items())
    assert records == records_written


@pytest.fixture
def cholesky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Factor the positive definite example of the page, and keep the journal."""
    monkeypatch.setattr(Journal, "remove", lambda self: None)
    with oc.create_array(tmp_path / "A", (2, 2), order="F") as A:
        A[...] = [[4, np.nan], [2, 10]]
    oc.linalg.cho_factor(tmp_path / "A", memory=1_000_000)
    return tmp_path / "A.cho"


def test_cholesky_factor(cholesky: Path) -> None:
    assert {path.name for path in cholesky.iterdir()} == {"zarr.json", "l", "journal"}
    np.testing.assert_array_equal(oc.open_array(cholesky / "l")[...], [[2, 0], [1, 3]])
    own = json.loads((cholesky / "zarr.json").read_text())["attributes"]["outcore"]
    assert own["kind"] == "cholesky"
    assert re.findall(r"`(\w+)`", marked("keys of a complete Cholesky factor")) == list(own)


def test_cholesky_journal(cholesky: Path) -> None:
    assert_journal(cholesky, "Cholesky journal")


def assert_journal(factors: Path, title: str) -> None:
    quoted = [line.split("\t") for line in marked(title).splitlines()]
    assert all(f"{crc32c(text.encode()):08x}" == sum_ for text, sum_ in quoted)
    head, *records = (json.loads(text) for text, _ in quoted)
    written = [line.split("\t") for line in (factors / "journal").read_text().splitlines()]
    head_written, *records_written = (json.loads(text) for text, _ in written)
    # These depend on the machine.
    head |= {name: head_written[name] for name in ("source", "modified_ns", "kernels", "threads")}
    assert list(head.items()) == list(head_written.items())
    assert records == records_written


@pytest.fixture
def qr_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Factor the tall example of the page, and keep the journal."""
    monkeypatch.setattr(Journal, "remove", lambda self: None)
    with oc.create_array(tmp_path / "A", (3, 2), order="F") as A:
        A[...] = [[0, 2], [4, 1], [0, 0]]
    oc.linalg.qr_factor(tmp_path / "A", memory=1_000_000)
    return tmp_path / "A.qr"


def test_qr_factors(qr_factors: Path) -> None:
    assert {path.name for path in qr_factors.iterdir()} == {"zarr.json", "qr", "tau", "journal"}
    np.testing.assert_array_equal(
        oc.open_array(qr_factors / "qr")[...], [[-4, -1], [1, -2], [0, 0]]
    )
    np.testing.assert_array_equal(oc.open_array(qr_factors / "tau")[...], [1, 0])
    own = json.loads((qr_factors / "zarr.json").read_text())["attributes"]["outcore"]
    assert own["kind"] == "qr"
    assert re.findall(r"`(\w+)`", marked("keys of complete QR factors")) == list(own)


def test_qr_journal(qr_factors: Path) -> None:
    assert_journal(qr_factors, "QR journal")


def test_linpack_order_becomes_lapacks(tmp_path: Path) -> None:
    """Apply the page's rule: later panels' swaps move the rows below a panel's diagonal block."""
    n = 130
    given: np.ndarray[Any, Any] = np.random.default_rng(1).standard_normal((n, n))
    lu = oc.linalg.lu_factor(oc.from_array(given, tmp_path / "A", order="F"), memory=200_000)
    packed, k = oc.open_array(lu.path / "lu")[...], lu.tile[1]
    assert n > 3 * k
    for first in range(0, n, k):
        L = packed[first + k :, first : first + k]
        for i in range(first + k, n):
            swap = [i - first - k, lu.piv[i] - first - k]
            L[swap] = L[swap[::-1]]
    expected, piv = scipy.linalg.lu_factor(given)
    assert np.array_equal(lu.piv, piv)
    np.testing.assert_allclose(packed, expected, atol=1e-12)


def test_fill_journal_and_generation(tmp_path: Path) -> None:
    def fill(rows: slice, cols: slice) -> np.ndarray[Any, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        oc.create_array(tmp_path / "A", (9, 9), fill=fill)
    lines = (tmp_path / "A/outcore.fill").read_text().splitlines()
    assert json.loads(lines[-1]) == {"blocks_done": 0}
    assert (tmp_path / "A/outcore.generation").read_text().isdigit()
