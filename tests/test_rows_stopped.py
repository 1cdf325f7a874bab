"""QR, AᴴA and SVD killed at any moment: no half-written result is reported as whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import one_thread
from stopping import is_whole, kill_at_line
from tall import tall

import outcore as oc
from outcore.errors import IncompleteError, NotFoundError
from outcore.linalg import gram, qr, svd

__all__ = ["one_thread"]  # a fixture for every test here

PAGES = (
    "_output/result.py", "_qr/qr.py", "_rows/tall_q.py", "_products/gram.py", "_svd/svd.py",
    "_svd/left_vectors.py", "../array/array.py",
)  # fmt: skip

CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "qr": lambda A, out: qr(A, mode="economic", out=out, memory="200 KiB", progress=False)[0],
    "gram": lambda A, out: gram(A, out=out, memory="1 MiB", progress=False)[0],
    "svd": lambda A, out: svd(A, 3, seed=0, out=out, memory="400 KiB", progress=False)[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_killed_anywhere(tmp_path: Path, name: str, all_lines: bool) -> None:
    A = tmp_path / "A"
    oc.from_array(tall(1200, 16, "f8"), A, chunks=(64, 16)).close()
    call, out = CALLS[name], tmp_path / "out"
    want = call(A, tmp_path / "undisturbed")[...]
    number, killed = 5, 0
    while kill_at_line(number, lambda: call(A, out), PAGES):
        killed += 1
        number += number // (3 if all_lines else 2)
        try:
            with oc.open_array(out) as found:
                assert np.array_equal(found[...], want)
                break
        except (NotFoundError, IncompleteError):
            pass
    assert killed > 5
    # The next call replaces an unfinished result without `if_exists`, and leaves no other files.
    if not is_whole(out):
        assert np.array_equal(call(A, out)[...], want)
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {"A", "undisturbed", "out"}
