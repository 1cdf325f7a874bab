"""Disk schemas: blocks against HPF's definition, and their chunks."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore.errors import CorruptError, InvalidError
from outcore.layout import disk_chunks
from outcore.layout.disk_chunks import with_disk_schema
from outcore.layout.disk_schema import DiskSchema, divide
from outcore.layout.distribution import distribute
from outcore.layout.zarr_format import Metadata, parse

AIM_BYTES, TILE_BYTES, MAX_TILE_BYTES = 512, 128, 2048

Case = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Any:
    """Chunks of bytes instead of megabytes, in the same proportions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_chunks, "AIM_BYTES", AIM_BYTES)
        patch.setattr(disk_chunks, "TILE_BYTES", TILE_BYTES)
        patch.setattr(disk_chunks, "MAX_TILE_BYTES", MAX_TILE_BYTES)
        yield


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dims = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(1, 60)] * dims))
    rules = draw(st.tuples(*[st.sampled_from(["block", "*"])] * dims))
    if draw(st.booleans()):
        cyclic = draw(st.integers(0, dims - 1))
        of_one = f"cyclic({draw(st.integers(1, 70))})"
        rules = tuple(of_one if dim == cyclic else "*" for dim in range(dims))
    mesh = tuple(1 if rule == "*" else draw(st.integers(1, 5)) for rule in rules)
    return shape, rules, mesh


def laid_out(case: Case, dtype: str, align: int) -> Metadata:
    shape, rules, mesh = case
    plain = Metadata(shape, np.dtype(dtype), shape, "C", "row-major")
    return with_disk_schema(plain, *divide(shape, rules, None, mesh, None), align)


def spans(extent: int, size: int) -> list[tuple[int, int]]:
    """First and last index of each part of `size` elements."""
    return [(first, min(first + size, extent) - 1) for first in range(0, extent, size)]


@given(cases(), st.sampled_from(["u1", "f4", "f8", "c16"]), st.sampled_from([1, 64, 4096]))
def test_no_chunk_has_elements_of_two_blocks(case: Case, dtype: str, align: int) -> None:
    shape, rules, mesh = case
    found = laid_out(case, dtype, align)
    assert math.prod(found.chunks) * found.dtype.itemsize <= MAX_TILE_BYTES
    assert found.block is not None
    for n, rule, p, chunk, block in zip(shape, rules, mesh, found.chunks, found.block, strict=True):
        hpf = {"block": math.ceil(n / p), "*": n}.get(rule) or int(rule[7:-1])
        # A block has at least HPF's elements, and less than one chunk more.
        assert min(hpf, n) <= block < hpf + chunk
        if rule.startswith("cyclic"):
            assert block == min(hpf, n)
        for first, last in spans(n, chunk):
            assert first // block == last // block
        if rule == "block":
            assert len(spans(n, block)) <= p


@given(cases(), st.sampled_from(["f4", "f8"]))
def test_a_block_is_a_run_of_chunks_in_its_own_order(case: Case, dtype: str) -> None:
    found = laid_out(case, dtype, 64)
    grid = found.grid()
    per_block, counts = found.block_chunks, found.counts
    assert per_block is not None
    places = []
    for corner in itertools.product(
        *(range(0, n, b) for n, b in zip(counts, per_block, strict=True))
    ):
        inside = itertools.product(
            *(range(c, min(c + b, n)) for c, b, n in zip(corner, per_block, counts, strict=True))
        )
        offsets = [grid.locate(at)[1] for at in inside]
        assert offsets == [offsets[0] + i * grid.slot_bytes for i in range(len(offsets))]
        places.append(offsets[0])
    assert grid.block_bytes is not None
    assert places == [number * grid.block_bytes for number in range(len(places))]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from(["u1", "f4", "f8", "c16"]),
    st.sampled_from([1, 64, 4096]),
)
def test_traditional_is_the_flat_array(
    shape: list[int], servers: int, dtype: str, align: int
) -> None:
    """The place of each element in the file is its row-major number."""
    extents = tuple(shape)
    plain = Metadata(extents, np.dtype(dtype), extents, "C", "row-major")
    found = with_disk_schema(plain, *divide(extents, "traditional", None, servers, servers), align)
    grid, item = found.grid(), found.dtype.itemsize
    corners = itertools.product(*(range(n) for n in found.counts))
    for at in corners:
        first = [i * c for i, c in zip(at, found.chunks, strict=True)]
        assert grid.locate(at)[1] == int(np.ravel_multi_index(first, extents)) * item
        # The elements of a chunk inside the array are consecutive, so one number locates them all.
        inside = [min(c, n - f) for c, n, f in zip(found.chunks, extents, first, strict=True)]
        last = [f + i - 1 for f, i in zip(first, inside, strict=True)]
        run = np.ravel_multi_index(last, extents) - np.ravel_multi_index(first, extents) + 1
        assert run == math.prod(inside)
        in_chunk = np.ravel_multi_index([i - 1 for i in inside], found.chunks) + 1
        assert in_chunk == run


def test_blocks_are_cut_as_evenly_as_they_divide() -> None:
    """Split the 48 rows of 32 bytes on each of 3 servers, 1536 bytes, into 3 chunks of 512."""
    found = laid_out(((144, 4), ("block", "*"), (3, 1)), "f8", 64)
    assert (found.chunks, found.block_chunks, found.block) == ((16, 4), (3, 1), (48, 4))
    assert found.grid().block_bytes == 48 * 32
    # 3 chunks of 15 would exceed 44 rows, so there are 4 chunks of 11.
    found = laid_out(((88, 4), ("block", "*"), (2, 1)), "f8", 1)
    assert (found.chunks, found.block) == ((11, 4), (44, 4))
    # 997 is prime: blocks get a few rows more, up to whole chunks.
    found = laid_out(((1994, 2), ("block", "*"), (2, 1)), "f8", 1)
    assert found.block is not None
    assert 997 < found.block[0] <= 997 + found.chunks[0]


def test_natural_has_a_block_for_each_process() -> None:
    schema, found = divide((8, 8, 8), "natural", None, (2, 2, 2), 3)
    assert (schema.name, schema.distribution, schema.mesh) == (
        "natural",
        "block,block,block",
        (2, 2, 2),
    )
    assert found.block == (4, 4, 4)
    by_rules = divide((8, 8), " Natural", "*,block", 4, None)
    assert by_rules == divide((8, 8), "natural", distribute((8, 8), "*,block", 4), None, None)
    assert by_rules[1].block == (8, 2)


def test_without_a_mesh_one_dimension_goes_over_all_servers() -> None:
    assert divide((9, 4), "*,block", None, None, 3)[0].mesh == (1, 3)
    assert divide((9, 4), "traditional", None, None, 3)[0].mesh == (3, 1)
    assert divide((9, 4), ["block", "*"], None, None, None)[0].mesh == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"disk_schema": "diagonal,*"}, "natural"),
        ({"disk_schema": 7}, "block"),
        ({"disk_schema": "block"}, "2 dimensions"),
        ({"disk_schema": "block,block"}, "pass mesh="),
        ({"disk_schema": "block,block", "mesh": (2, 2, 2)}, "2 dimensions"),
        ({"disk_schema": "block,*", "mesh": 0}, "at least 1"),
        ({"disk_schema": "block,*", "mesh": "many"}, "integers"),
        ({"disk_schema": "cyclic(0),*"}, "at least 1"),
        ({"disk_schema": "cyclic(2),block", "mesh": (2, 2)}, "use block"),
        ({"disk_schema": "natural"}, "pass mesh="),
        ({"disk_schema": "natural", "mesh": (2,)}, "2 dimensions"),
        ({"disk_schema": "natural", "mesh": (2, 2), "memory_schema": "cyclic,block"}, "one block"),
        (
            {"disk_schema": "natural", "memory_schema": distribute((9, 9), "block,*", 2)},
            r"\(9, 9\)",
        ),
        ({"disk_schema": "block,*", "memory_schema": "block,*"}, "leave it out"),
        ({"memory_schema": "block,*"}, "pass disk_schema="),
        ({"mesh": (2, 2)}, "pass disk_schema="),
        ({"disk_schema": "traditional", "chunks": (2, 2)}, "leave these out"),
        ({"disk_schema": "traditional", "chunk_order": "hilbert"}, "leave these out"),
        ({"disk_schema": "traditional", "order": "F"}, "leave these out"),
        ({"chunk_order": "blocks"}, "disk schema"),
        ({"chunk_order": "spiral"}, "hilbert"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.create_array(tmp_path / "A", (8, 6), **arguments)
    assert not (tmp_path / "A").exists()


def test_bad_shapes(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="at least 1"):
        oc.create_array(tmp_path / "A", (8, 0), disk_schema="traditional")
    with pytest.raises(InvalidError, match="single numbers"):
        oc.create_array(tmp_path / "A", (0,), growing=True, disk_schema="traditional")
    with pytest.raises(InvalidError, match="larger blocks"):
        oc.create_array(tmp_path / "A", 70_000, "u1", disk_schema="cyclic(1)")
    with pytest.raises(InvalidError, match="one file"):
        oc.create_array(tmp_path / "A", 1 << 50, "u1", disk_schema="traditional")


def test_what_zarr_json_says_is_checked() -> None:
    found = laid_out(((8, 6), ("block", "*"), (2, 1)), "f8", 4096)
    text = found.to_json()
    assert parse(text, "A") == found
    for damaged in (
        text.replace(b'"block,*"', b'"block"'),
        text.replace(b'"distribution"', b'"distributed"'),
    ):
        assert damaged != text
        with pytest.raises(CorruptError):
            parse(damaged, "A")


def test_in_words() -> None:
    def words(name: str, rules: str, mesh: tuple[int, ...]) -> str:
        return str(DiskSchema(name, rules, mesh))

    assert words("traditional", "block,*,*", (4, 1, 1)) == (
        "traditional, which is block,*,* over 4"
    )
    assert words("block,block,*", "block,block,*", (2, 3, 1)) == "block,block,* over 2 x 3"
    assert words("*,*", "*,*", (1, 1)) == "*,*"
