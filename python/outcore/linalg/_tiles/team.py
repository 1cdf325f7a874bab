"""Independent products, shared by threads that each call the BLAS.

A BLAS splits each product into one part for each of its threads, and all wait for the slowest. So
cores are idle for much of the time in small products. The threads of a team take whole products,
the largest first, each as soon as it has finished the previous one. Products that exceed an even
share are left to the threads of the BLAS.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from outcore.blas import blas_choice
from outcore.blas.calls import Trans
from outcore.blas.lapack import Kernels
from outcore.linalg._tiles.matrix import Matrix


class _Product(NamedTuple):
    """A product: its number of multiplications, and its function."""

    size: int
    work: Callable[[], None]


class Team(AbstractContextManager["Team"]):
    """As many threads as the BLAS has, including the caller's; use it as a context manager.

    `gemm` and `herk` queue products, and `run` does all of them concurrently. So no product may
    depend on another one.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._size = blas_choice.in_use()[1]
        self._others = ThreadPoolExecutor(max(self._size - 1, 1), "outcore-team")
        self._due: list[_Product] = []

    def __exit__(self, *error: object) -> None:
        self._others.shutdown()

    def gemm(
        self, A: Matrix, B: Matrix, C: Matrix, *, alpha: complex, beta: complex, trans_b: Trans
    ) -> None:
        """Queue C <- beta C + alpha A op(B), with the transpose or the conjugate transpose of B."""
        work = functools.partial(
            self._kernels.gemm, A, B, C, alpha=alpha, beta=beta, trans_b=trans_b
        )
        self._due.append(_Product(A.size * C.shape[1], work))

    def herk(self, A: Matrix, C: Matrix, *, alpha: float, beta: float, lower: bool) -> None:
        """Queue C <- beta C + alpha A Aᴴ, of which one triangle is computed."""
        work = functools.partial(self._kernels.herk, A, C, alpha=alpha, beta=beta, lower=lower)
        self._due.append(_Product(A.size * A.shape[0] // 2, work))

    def run(self) -> None:
        """Do the queued products.

        Raises
        ------
        KeyboardInterrupt
            After Ctrl-C: some products may be done.
        """
        due, self._due = sorted(self._due, key=lambda product: product.size), []
        shared = self._balanced(due)
        for product in reversed(due[shared:]):
            product.work()
        if not shared:
            return
        with one_thread() as is_so:
            # If the BLAS runs with one thread, the other threads take products from the same list.
            small, count = due[:shared], self._size - 1 if is_so else 0
            others = [self._others.submit(_work_off, small) for _ in range(count)]
            try:
                _work_off(small)
            finally:
                small.clear()
                wait(others)
        for other in others:
            other.result()

    def _balanced(self, due: Sequence[_Product]) -> int:
        """Return the number of products, smallest first, that threads can share about evenly."""
        if self._size == 1:
            return 0
        total = sum(product.size for product in due)
        for count in range(len(due), 0, -1):
            largest = due[count - 1].size
            if self._size * largest <= total:
                return count
            total -= largest
        return 0


_turn = threading.Lock()
"""Held by the thread that sets the number of threads of the BLAS, which is global."""


@contextmanager
def one_thread() -> Iterator[bool]:
    """Set the BLAS to one thread, unless another thread holds the lock; yield whether it is."""
    if not _turn.acquire(blocking=False):
        yield False
        return
    try:
        with blas_choice.threads(1):
            # Some threads may not set it.
            yield blas_choice.in_use()[1] == 1
    finally:
        _turn.release()


def _work_off(products: list[_Product]) -> None:
    """Do products from the end of the list until it is empty."""
    while products:
        try:
            product = products.pop()
        except IndexError:
            return
        product.work()
