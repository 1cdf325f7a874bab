"""Algebra over GF(2): factors of a permutation of addresses, and the number of passes."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import outcore as oc
from outcore.permutations import gf2
from outcore.permutations.bit_matrices import BIT_KINDS, columns_of
from outcore.permutations.factors import Loads, factors, gamma_rank, passes_of
from outcore.permutations.geometry import geometry_of
from outcore.permutations.gf2 import Matrix


def random_matrix(rng: np.random.Generator, bits: int) -> Matrix:
    """Draw a matrix that is not singular, a sparse one now and then."""
    while True:
        rows = (rng.random((bits, bits)) < rng.choice([0.15, 0.5])).astype(int)
        matrix = gf2.from_rows(rows | np.eye(bits, dtype=int) * rng.integers(2))
        if gf2.rank(matrix) == bits:
            return matrix


def cases() -> Iterator[tuple[Matrix, int, int]]:
    rng = np.random.default_rng(1)
    for _ in range(60):
        bits = int(rng.integers(2, 16))
        block = int(rng.integers(0, bits))
        matrix = random_matrix(rng, bits)
        if rng.random() < 0.4:  # a permutation of the bits
            matrix = tuple(1 << int(j) for j in rng.permutation(bits))
        most = block + 1 if rng.random() < 0.4 else bits
        yield matrix, block, int(rng.integers(block + 1, most + 1))


def test_the_algebra_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for bits in (1, 2, 5, 9):
        a, b = random_matrix(rng, bits), random_matrix(rng, bits)
        rows_a, rows_b = gf2.to_rows(a), gf2.to_rows(b)
        assert gf2.from_rows(rows_a) == a
        np.testing.assert_array_equal(oc.bit_product(rows_a, rows_b), rows_a @ rows_b % 2)
        np.testing.assert_array_equal(
            rows_a.astype(int) @ oc.bit_inverse(rows_a) % 2, np.eye(bits, dtype=int)
        )
        x = np.arange(1 << bits)
        digits = x[:, None] >> np.arange(bits) & 1
        images = (digits @ rows_a.T % 2) @ (1 << np.arange(bits))
        np.testing.assert_array_equal(gf2.times_each(a, x), images)
        assert [gf2.times(a, int(v)) for v in x] == images.tolist()


def test_named_matrices_do_what_their_names_say() -> None:
    x = np.arange(32)
    moved = {kind: gf2.times_each(columns_of(kind, 5), x) for kind in BIT_KINDS}
    assert moved["bit-reversal"].tolist() == [int(f"{i:05b}"[::-1], 2) for i in x]
    assert moved["gray"].tolist() == (x ^ x >> 1).tolist()
    assert moved["shuffle"].tolist() == [*(2 * x[:-1] % 31), 31]
    assert moved["inverse-gray"][moved["gray"]].tolist() == x.tolist()
    assert moved["unshuffle"][moved["shuffle"]].tolist() == x.tolist()


def moved_by_loads(data: npt.NDArray[np.int64], loads: Loads) -> npt.NDArray[np.int64]:
    """Move elements load by load; check that loads read and write whole blocks, each one once."""
    out = np.full_like(data, -1)
    block = np.arange(1 << loads.block_bits)
    p = np.arange(1 << loads.load_bits)
    for base, rest, shift in zip(*loads.places(), strict=True):
        read, written = base ^ gf2.times_each(loads.source, p), gf2.times_each(loads.target, p)
        assert (np.diff(read) > 0).all()
        for addresses in (read, rest ^ written):
            blocks = addresses.reshape(-1, len(block))
            assert (blocks == blocks[:, :1] + block).all()
            assert (blocks[:, 0] % len(block) == 0).all()
        load = np.empty_like(p)
        load[gf2.times_each(loads.inner, p) ^ shift] = data[read]
        assert (out[rest ^ written] == -1).all()
        out[rest ^ written] = load
    return out


def test_factors_are_the_fewest_passes_and_yield_the_permutation() -> None:
    seen = set()
    for matrix, block_bits, load_bits in cases():
        bits = len(matrix)
        found = factors(matrix, block_bits, load_bits)
        rank = gamma_rank(matrix, block_bits)
        if load_bits == bits:
            rank = min(rank, load_bits - block_bits)
        assert len(found) == max(math.ceil(rank / (load_bits - block_bits)), 1)
        assert len(found) == passes_of(matrix, block_bits, load_bits)
        seen.add(len(found))
        complement = int(np.random.default_rng(bits).integers(1 << bits))
        data = x = np.arange(1 << bits)
        for i, factor in enumerate(found):
            last = complement if i == len(found) - 1 else 0
            data = moved_by_loads(data, Loads.of(factor, last, block_bits, load_bits))
        expected = np.empty_like(x)
        expected[gf2.times_each(matrix, x) ^ complement] = x
        np.testing.assert_array_equal(data, expected)
    assert seen >= {1, 2, 3, 4}


def test_classes_of_one_pass_take_one_pass() -> None:
    rng = np.random.default_rng(2)
    bits, load_bits, block_bits = 12, 8, 5
    high = bits - load_bits
    for _ in range(20):
        # Memory rearrangement: loads move to loads (Cormen et al. 1999, section 1).
        inner, outer = random_matrix(rng, load_bits), random_matrix(rng, high)
        mixed = [int(c) << load_bits for c in outer]
        mrc = (*inner, *(c | int(rng.integers(1 << load_bits)) for c in mixed))
        # Memory-load dispersal: loads of adjacent elements move to whole blocks, as bits of the
        # relative block number in a load become bits of the load number, and back.
        swapped = list(gf2.identity(bits))
        for i in range(load_bits - block_bits):
            a, b = block_bits + i, load_bits + i
            swapped[a], swapped[b] = swapped[b], swapped[a]
        mld = gf2.product(tuple(swapped), mrc)
        for matrix in (mrc, mld, gf2.inverse(mrc), gf2.inverse(mld)):
            assert passes_of(matrix, block_bits, load_bits) == 1


def test_the_stated_budget_is_the_least() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        bits = int(rng.integers(1, 25))
        matrix = tuple(1 << int(j) for j in rng.permutation(bits))
        most_block_bits = int(rng.integers(0, bits + 1))

        def memory_of(memory: int, given: tuple[Any, ...] = (matrix, 0, most_block_bits, 8)) -> int:
            return geometry_of(*given, memory).memory_bytes

        with pytest.raises(oc.errors.BudgetError) as error:
            memory_of(1)
        least = int(str(error.value).split()[1])
        with pytest.raises(oc.errors.BudgetError, match=f"need {least} bytes"):
            memory_of(least - 1)
        for memory in (least, least + int(rng.integers(1 << 25))):
            assert memory_of(memory) <= memory


def test_large_budgets_leave_loads_that_overlap() -> None:
    gray = geometry_of(columns_of("gray", 24), 0, 24, 8, 1 << 30)
    assert ([each.count for each in gray.passes], gray.buffers) == ([16], 3)
    assert gray.request_bits(0) == (19, 19), "4 MiB"
    # Only a load of all elements needs a single pass.
    reversal = geometry_of(columns_of("bit-reversal", 24), 0, 24, 8, 1 << 30)
    assert ([each.count for each in reversal.passes], reversal.buffers) == ([1], 2)


def test_passes_of_known_permutations() -> None:
    # 2^28 elements of 8 bytes: blocks of 256 KiB, loads of 8 and 16 MiB.
    reversal = columns_of("bit-reversal", 28)
    assert gamma_rank(reversal, 15) == 13
    assert [passes_of(reversal, 15, m) for m in (15, 16, 20, 21, 22, 28)] == [None, 13, 3, 3, 2, 1]
    assert passes_of(columns_of("gray", 28), 15, 16) == 1
    assert gamma_rank(columns_of("shuffle", 28), 15) == 1


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1, 1], [1, 1]], "need a matrix of rank 2 over GF(2), .* have rank 1; "),
        (np.eye(3)[:2], r"need a square matrix, .* have shape \(2, 3\); "),
        ([[2, 0], [0, 1]], "need a matrix of the integers 0 and 1, have others"),
        (np.eye(2), "have others, of type float64; "),
        (np.eye(63, dtype=int), "need 1 to 62 bits of an index, have 63; "),
    ],
)
def test_other_matrices_are_refused(matrix: npt.ArrayLike, message: str) -> None:
    with pytest.raises(oc.errors.InvalidError, match=message.replace("GF(2)", r"GF\(2\)")):
        oc.bit_inverse(matrix)


def test_products_need_one_shape() -> None:
    with pytest.raises(oc.errors.InvalidError, match="one shape, have 2 and 3 bits; "):
        oc.bit_product(np.eye(2, dtype=int), np.eye(3, dtype=int))
    with pytest.raises(oc.errors.InvalidError, match=r"need a kind, one of bit-reversal, .*'x'; "):
        oc.bit_matrix("x", 3)
