"""Only the same call resumes, or opens, an assembly."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import outcore as oc
from outcore.errors import ExistsError, FillChangedWarning, InvalidError, JournalError

SHAPE = (40, 30)
Filled = npt.NDArray[np.float64]


def assemble(path: Path, fill: Callable[..., Filled], **options: Any) -> oc.Array:
    return oc.create_array(
        path, SHAPE, fill=fill, chunks=(8, 30), memory=60_000, progress=False, **options
    )


def constant(value: float, stop_at: int | None = None) -> Callable[..., Filled]:
    """Return a kernel whose source text is the same whatever it computes."""

    def fill(rows: slice, cols: slice) -> Filled:
        if rows.start == stop_at:
            raise KeyboardInterrupt
        return np.full((rows.stop - rows.start, cols.stop - cols.start), value)

    return fill


def stopped(path: Path, value: float, **options: Any) -> None:
    with pytest.raises(oc.errors.Interrupted):
        assemble(path, constant(value, stop_at=16), **options)


DIFFERENT = [
    ({"attributes": {"wavenumber": 1.0}}, {"attributes": {"wavenumber": 2.0}}),
    ({"attributes": {"wavenumber": 1.0}}, {}),
    ({"fill_id": {"wavenumber": 1.0, "panels": [3, 4]}}, {"fill_id": {"wavenumber": 1.0}}),
    ({"fill_id": 1}, {}),
    ({}, {"fill_id": "kernel 2"}),
]


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
@pytest.mark.parametrize("if_exists", ["error", "open"])
def test_another_kernel_does_not_resume(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], if_exists: str
) -> None:
    stopped(tmp_path / "A", 1.0, **one)
    with pytest.raises(JournalError, match=r"attributes|fill_id") as refused:
        assemble(tmp_path / "A", constant(2.0), if_exists=if_exists, **two)
    assert "if_exists='overwrite'" in str(refused.value).rpartition(";")[2]
    A = assemble(tmp_path / "A", constant(1.0), if_exists=if_exists, **one)
    np.testing.assert_array_equal(A, np.ones(SHAPE))
    with assemble(tmp_path / "A", constant(2.0), if_exists="overwrite", **two) as A:
        np.testing.assert_array_equal(A, np.full(SHAPE, 2.0))


@pytest.mark.parametrize(("one", "two"), [*DIFFERENT[:1], *DIFFERENT[2:]])
def test_another_kernel_does_not_open(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any]
) -> None:
    assemble(tmp_path / "A", constant(1.0), **one)
    with pytest.raises(ExistsError, match=r"attributes|fill_id"):
        assemble(tmp_path / "A", constant(2.0), if_exists="open", **two)
    never = constant(0.0, stop_at=0)
    np.testing.assert_array_equal(
        assemble(tmp_path / "A", never, if_exists="open", **one), np.ones(SHAPE)
    )


class Kernel:
    """A kernel with another source text than `constant`."""

    def __call__(self, rows: slice, cols: slice) -> Filled:
        return np.ones((rows.stop - rows.start, cols.stop - cols.start))

    def method(self, rows: slice, cols: slice) -> Filled:
        return self(rows, cols)


@pytest.mark.parametrize(
    "changed", [Kernel(), Kernel().method, functools.partial(Kernel.method, Kernel())]
)
@pytest.mark.parametrize("is_whole", [False, True])
def test_changed_source_text_warns(
    tmp_path: Path, changed: Callable[..., Filled], is_whole: bool
) -> None:
    if is_whole:
        assemble(tmp_path / "A", constant(1.0))
    else:
        stopped(tmp_path / "A", 1.0)
    with pytest.warns(FillChangedWarning, match="source text of fill") as caught:
        oc.create_array(
            tmp_path / "A", SHAPE, fill=changed, chunks=(8, 30), progress=False, if_exists="open"
        )
    assert caught[0].filename == __file__


def test_the_same_source_text_does_not_warn(tmp_path: Path) -> None:
    """A function without source text does not warn either."""
    without: dict[str, Any] = {"np": np}
    exec("def fill(r, c): return np.ones((r.stop - r.start, c.stop - c.start))", without)
    for name, first in (("A", constant(1.0)), ("B", without["fill"])):
        assemble(tmp_path / name, first)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assemble(tmp_path / name, constant(1.0), if_exists="open")
            assemble(tmp_path / name, without["fill"], if_exists="open")


def test_a_fill_id_is_a_json_value(tmp_path: Path) -> None:
    for wrong in (float("nan"), {1: 2}, (1, 2), object()):
        with pytest.raises(InvalidError, match="fill_id"):
            assemble(tmp_path / "A", constant(1.0), fill_id=wrong)
    with pytest.raises(InvalidError, match="fill_id= belongs to fill="):
        oc.create_array(tmp_path / "A", 3, fill_id=1)
    assert not (tmp_path / "A").exists()


def test_an_array_that_was_not_assembled_is_not_opened(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", SHAPE, chunks=(8, 30))
    with pytest.raises(ExistsError, match="was not assembled by fill"):
        assemble(tmp_path / "A", constant(1.0), if_exists="open")
