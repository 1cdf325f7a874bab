"""The server of each chunk: by the contents of the servers' files, and as a picture."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pool_files import data_files
from served_pools import in_memory, served_url

import outcore as oc
from outcore.array_files.placement import SEVERAL, draw
from outcore.cli import main

__all__ = ["served_url"]


@pytest.fixture
def directory() -> Iterator[Path]:
    with in_memory() as found:
        yield found


@pytest.fixture
def pool(directory: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([directory / name for name in "012"]) as opened:
        yield opened


def picture(array: oc.Array) -> tuple[str, ...]:
    found = array.info().placement
    assert found is not None
    return found.picture


def holders(directory: Path, marker: bytes) -> list[str]:
    """Return the servers whose files contain these bytes."""
    return [
        name
        for name in "012"
        if any(marker in path.read_bytes() for path in data_files(directory / name))
    ]


@pytest.mark.parametrize("chunk_order", ["row-major", "column-major", "hilbert", "z-order"])
def test_the_picture_is_what_the_servers_have(
    directory: Path, pool: oc.Pool, chunk_order: str
) -> None:
    shape, chunks = (4, 640, 512), (2, 256, 256)  # of 1 MiB, so that stripe units have one
    array = oc.create_array(pool / "A", shape, "i8", chunks=chunks, chunk_order=chunk_order)
    first = {at: 2**60 + 7919 * n for n, at in enumerate(np.ndindex(2, 3, 2))}
    for (i, j, k), value in first.items():
        array[2 * i, 256 * j, 256 * k] = value
    array.flush()
    heading, above, *rows = picture(array)
    assert heading == "dimension 1 down, 2 across, above: 0"
    assert above == "0   1"
    seen = set()
    for j, row in enumerate(rows):
        for i, plane in enumerate(row.split()):
            for k, server in enumerate(plane):
                assert holders(directory, first[i, j, k].to_bytes(8, "little")) == [server]
                seen.add(server)
    assert seen == set("012")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"disk_schema": "block,*"}, ["abc"]),
        ({"disk_schema": "block,block", "mesh": (2, 3)}, ["abc", "abc"]),
        ({"disk_schema": "natural", "mesh": (3, 2)}, ["ab", "ca", "bc"]),
        ({"disk_schema": "*,cyclic(2)"}, ["abcabc"]),
        ({"disk_schema": "block,*", "mesh": 2}, ["ab"]),
        ({"disk_schema": "*,*"}, ["a"]),
    ],
)
def test_blocks_go_to_servers_in_turn(
    pool: oc.Pool, setting: dict[str, str], expected: list[str]
) -> None:
    array = oc.create_array(pool / "A", (12, 12), **setting)
    found = array.info().placement
    assert found is not None
    # The first server of a file is arbitrary.
    names = dict(zip("abc", map(str, found.servers), strict=False))
    assert list(found.picture) == ["".join(names[letter] for letter in row) for row in expected]
    assert sum(found.chunk_counts) == sum(map(len, expected))


def test_a_chunk_on_several_servers(pool: oc.Pool) -> None:
    """Make the file by hand, since outcore does not create arrays with such stripes."""
    array = oc.create_array(pool / "A", (4, 256, 512), "i8", chunks=(1, 256, 512))
    path = array.path / "c/0/0/0"
    content = path.read_bytes()
    pool.rm("A/c/0/0/0")
    with pool.open("A/c/0/0/0", "w", hints={"stripe_unit_bytes": 2**19}) as file:
        file.write(content)
    found = oc.open_array(array.path).info().placement
    assert found is not None
    assert (found.parted_chunks, found.chunk_counts, found.picture) == (4, (0, 0, 0), ("++++",))
    assert "4 on several" in str(found)


def test_of_a_growing_array_the_last_step(directory: Path, pool: oc.Pool) -> None:
    array = oc.create_array(pool / "A", (0, 512, 512), "i8", chunks=(256, 256), growing=True)
    assert array.info().placement is None
    for step in range(3):
        array.append((2**40 + 2**20 * step + np.arange(2**18)).reshape(512, 512))
        array.flush()
        for i, row in enumerate(picture(array)):
            for j, server in enumerate(row):
                corner = array[step, 256 * i, 256 * j : 256 * j + 8].tobytes()
                assert holders(directory, corner) == [server]


def test_none_on_a_plain_path(directory: Path) -> None:
    array = oc.create_array(directory / "A", (4, 4), disk_schema="traditional")
    assert array.info().placement is None
    assert "disk schema traditional, which is block,* over 1" in str(array.info())
    said = CliRunner().invoke(main, ["info", str(directory / "A")]).stdout
    assert "traditional" in said
    assert "picture" not in said


def test_pictures_are_cut_to_a_sensible_size() -> None:
    def drawn(*counts: int) -> list[str]:
        return list(draw(np.zeros(counts, np.int64)))

    assert drawn(1, 1) == ["0"]
    assert drawn(3, 1) == ["000"]
    assert drawn(2, 3) == ["000", "000"]
    assert drawn(100) == ["0" * 64, "0" * 36]
    assert drawn(1, 2000)[-1] == "... and 976 more chunks"
    wide = drawn(2, 100)
    assert wide == ["0" * 64 + " ..."] * 2
    assert drawn(100, 2)[-1] == "... and 84 more lines"
    assert drawn(2000, 8, 8)[-1].startswith("... and ")
    for counts in [(100, 100, 100), (40, 40, 40, 2), (65536,), (256, 256), (2,) * 10]:
        lines = drawn(*counts)
        assert len(lines) < 70
        assert max(map(len, lines)) <= 80


def test_numbers_of_two_digits_and_chunks_on_several() -> None:
    assert list(draw(np.array([[0, 11], [SEVERAL, 3]]))) == [" 0 11", " +  3"]


def test_info_on_the_command_line(served_url: str) -> None:
    with oc.connect(served_url) as pool:
        oc.create_array(pool / "A", (12, 12), disk_schema="block,block", mesh=(2, 2))
    result = CliRunner().invoke(main, ["info", f"{served_url}/A"])
    assert result.exit_code == 0, result.output
    text = result.stdout.splitlines()
    at = next(i for i, line in enumerate(text) if line.split()[:1] == ["picture"])
    first, second = text[at].split()[1], text[at + 1].strip()
    assert first == second
    assert sorted(first) == ["0", "1"]
    result = CliRunner().invoke(main, ["info", "--json", f"{served_url}/A"])
    details = json.loads(result.stdout)["entries"][0]["details"]
    assert details["placement"] == {
        "stripe_unit_bytes": 65536,
        "servers": [int(digit) for digit in first],
        "chunk_counts": [2, 2],
        "parted_chunks": 0,
        "picture": [first, second],
    }
    schema = "block,block"
    assert details["disk_schema"] == {"name": schema, "distribution": schema, "mesh": [2, 2]}
