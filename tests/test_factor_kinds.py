"""Factors of one kind where those of another are needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import on_disk

from outcore.errors import InvalidError
from outcore.linalg import (
    cho_factor,
    cho_solve,
    cond_est,
    export_lapack,
    lu_factor,
    lu_solve,
    qr_factor,
    qr_solve,
    slogdet,
)

KINDS: dict[str, Callable[..., Any]] = {"LU": lu_factor, "Cholesky": cho_factor, "QR": qr_factor}

USES: list[tuple[Callable[..., Any], set[str], bool]] = [
    (lu_solve, {"LU"}, True),
    (cho_solve, {"Cholesky"}, True),
    (qr_solve, {"QR"}, True),
    (export_lapack, {"LU"}, False),
    (cond_est, {"LU", "Cholesky"}, False),
    (slogdet, {"LU", "Cholesky"}, False),
]


@pytest.mark.parametrize("made", KINDS)
def test_each_is_taken_where_it_fits_and_refused_elsewhere(made: str, tmp_path: Path) -> None:
    factor = KINDS[made](on_disk(tmp_path / "A", definite(60, "f8")), progress=False)
    for use, kinds, needs_b in USES:
        arguments = (factor, np.ones(60)) if needs_b else (factor,)
        if made in kinds:
            use(*arguments, progress=False)
            continue
        with pytest.raises(InvalidError, match=f"need .* factors, have {type(factor).__name__}"):
            use(*arguments, progress=False)
