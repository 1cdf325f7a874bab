"""The default chunks of arrays, by shape."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore.layout.zarr_format import MAX_TILE_BYTES, MAX_TILES, TALL, TILE_BYTES, default_chunks
from outcore.linalg import lstsq
from outcore.linalg._tiles.grains import Grains

PAGE = 4096
ITEMSIZES = st.sampled_from([1, 2, 4, 8, 16])


@pytest.mark.parametrize(
    ("shape", "order", "chunks"),
    [
        ((2_000_000, 512), "C", (1024, 512)),
        ((2_000_000, 512), "F", (2048, 256)),
        ((512, 2_000_000), "F", (512, 1024)),
        ((512, 2_000_000), "C", (256, 2048)),
        ((10_000, 64), "C", (5000, 64)),  # two even chunks, not one of 8192 rows and a rest
        ((3000, 20), "C", (3072, 20)),  # pages hold 128 rows of 160 bytes
        ((30_000_000, 2000), "C", (512, 2000)),  # 4 MiB would make too many chunks
        ((16384, 16384), "F", (2048, 256)),
        ((16384, 16384), "C", (256, 2048)),
        ((200_000, 200_000), "F", (4096, 256)),
        ((1000, 126), "C", (256, 126)),  # not tall
        ((1_000_000,), "C", (524_288,)),
        ((256, 256, 256), "C", (64, 64, 128)),
        ((256, 256, 256), "F", (128, 64, 64)),
        ((192, 192, 192), "C", (48, 96, 96)),
        ((10, 4000, 4000), "C", (10, 125, 250)),
        ((128, 128, 128, 128), "C", (16, 32, 32, 32)),
        ((3, 1), "C", (3, 1)),
        ((0, 5), "C", (1, 5)),
    ],
)
def test_shapes(shape: tuple[int, ...], order: str, chunks: tuple[int, ...]) -> None:
    assert default_chunks(shape, 8, order) == chunks


@given(st.integers(1, 5000), st.integers(TALL, 10**5), ITEMSIZES)
def test_a_tall_array_in_order_c_has_chunks_of_whole_rows(
    columns: int, times: int, itemsize: int
) -> None:
    rows = columns * times
    height, width = default_chunks((rows, columns), itemsize, "C")
    assert width == columns
    row_bytes = columns * itemsize
    usual = TILE_BYTES
    while rows * row_bytes // usual > MAX_TILES and usual < MAX_TILE_BYTES:
        usual *= 2
    assert height * row_bytes <= usual
    # Rounding to whole pages takes at most a half, and even chunks at most another half.
    assert height >= rows or height * row_bytes >= usual / 4
    assert default_chunks((columns, rows), itemsize, "F") == (width, height)
    # A chunk can be read in parts of whole pages, if these are small beside it.
    page_rows = PAGE // math.gcd(PAGE, row_bytes)
    grain = Grains.of((height, width), "C", itemsize).rows
    if page_rows < rows and page_rows * row_bytes <= TILE_BYTES // 2:
        assert grain == page_rows
    padding = math.ceil(rows / height) * height - rows
    assert padding < math.ceil(rows / height) * max(grain if grain < height else 1, 1)


@given(st.integers(1, 10**7), st.integers(1, 10**7), ITEMSIZES, st.sampled_from("CF"))
def test_any_matrix_has_chunks_of_a_bounded_size(
    rows: int, columns: int, itemsize: int, order: str
) -> None:
    chunks = default_chunks((rows, columns), itemsize, order)
    assert min(chunks) >= 1
    assert math.prod(chunks) * itemsize <= MAX_TILE_BYTES
    swapped = default_chunks((columns, rows), itemsize, "CF"[order == "C"])
    assert swapped == chunks[::-1]


@given(st.lists(st.integers(1, 3000), min_size=3, max_size=5), ITEMSIZES)
def test_arrays_of_more_dimensions_have_near_cubes(shape: list[int], itemsize: int) -> None:
    """Sides are within a factor of 2, except for rounding and for whole sides."""
    chunks = default_chunks(shape, itemsize, "C")
    aim = TILE_BYTES
    while math.prod(shape) * itemsize // aim > MAX_TILES and aim < MAX_TILE_BYTES:
        aim *= 2
    assert math.prod(chunks) * itemsize <= aim
    assert chunks == tuple(shape) or math.prod(chunks) * itemsize > aim / 4
    cut = [c for c, n in zip(chunks, shape, strict=True) if c < n]
    assert not cut or max(chunks) <= 2 * min(cut) + 1
    assert default_chunks(shape[::-1], itemsize, "F") == chunks[::-1]
    for c, n in zip(chunks, shape, strict=True):
        parts = math.ceil(n / c)
        assert c == n or math.ceil(n / 2 ** math.ceil(math.log2(parts))) == c


def test_a_step_of_a_growing_array_has_the_chunks_of_an_array_of_its_own(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "A", (0, 256, 256, 256), growing=True) as A:
        assert A.chunks == (1, *default_chunks((256, 256, 256), 8, "C"))
    with oc.ArrayGroup(tmp_path / "G", {"u": oc.ArraySpec((256, 256, 256))}) as group:
        assert group["u"].chunks == (1, *default_chunks((256, 256, 256), 8, "C"))


def test_rows_of_such_an_array_are_read_once(tmp_path: Path) -> None:
    a = np.random.default_rng(0).standard_normal((6000, 40))
    with oc.from_array(a, tmp_path / "A", order="C", progress=False) as A:
        assert A.chunks == (6016, 40)
        x, report = lstsq(A, a.sum(axis=1), memory="600 KiB", progress=False)
    np.testing.assert_allclose(x, np.ones(40), rtol=1e-10)
    assert report.bytes_read == report.planned_bytes_read <= 1.01 * a.nbytes
