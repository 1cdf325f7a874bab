"""Progress: parts of a whole, and one bar for a call of several parts."""

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import on_disk, random_matrix
from stopping import stop_after
from tall import tall
from verb_calls import VERBS

import outcore as oc
from outcore import linalg
from outcore._util import progress
from outcore._util.progress import Meter
from outcore.errors import InvalidError
from outcore.linalg import solve

N = 300

AT_LEAST = {"form_q": 2_500_000, "qr_solve": 1_500_000, "qr": 1_000_000} | dict.fromkeys(
    ("gauss_seidel", "jacobi", "cg", "gmres"), 4_000_000
)
"""Memory that some verbs need; for all others 600 kB suffices."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Advance the clock by a second at each reading, so that no update comes too soon."""
    seconds = itertools.count(0.0, 1.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))
    return iter(())


def test_a_part_moves_the_whole() -> None:
    told: list[float] = []
    with Meter("whole", 4.0, lambda done, left: told.append(done)) as whole:
        for work in (1.0, 3.0):
            with Meter("part", 10.0, whole.part(work)) as part:
                for _ in range(2):
                    part.advance(5.0)
    assert told == pytest.approx([1 / 8, 1 / 4, 1 / 4, 5 / 8, 1, 1, 1])


def test_what_an_earlier_call_did_is_no_sign_of_speed() -> None:
    """Ignore the 90 of 100 units that were done before the start when computing the speed."""
    whole = Meter("whole", 100.0, False)
    part = Meter("part", 50.0, whole.part(100.0), done=45.0)
    part.advance(0.5)
    assert whole.seconds_left() > 9


def test_work_that_was_not_foreseen() -> None:
    told: list[float] = []
    whole = Meter("whole", 2.0, lambda done, left: told.append(done))
    whole.advance(1.0)
    whole.extend(2.0)
    whole.advance(1.0)
    assert told == [0.5, 0.5]


def test_solve_shows_one_bar(tmp_path: Path) -> None:
    told: list[float] = []
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    solve(A, np.ones(N), memory=400_000, progress=lambda done, left: told.append(done))
    assert told == sorted(told)
    assert told[0] < 0.5
    assert told[-1] == 1
    assert len(set(told)) > 10


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_tells_how_far_it_is(verb: str, tmp_path: Path) -> None:
    told: list[float] = []
    left: list[float] = []

    def tell(fraction: float, seconds_left: float) -> None:
        told.append(fraction)
        left.append(seconds_left)

    VERBS[verb].call(tmp_path, {"memory": AT_LEAST.get(verb, 600_000), "progress": tell})
    assert told == sorted(told), "it rises"
    assert 0 < told[0] <= 0.5
    assert told[-1] == 1
    assert len(set(told)) >= 3
    assert left[-1] == 0
    assert min(left) >= 0


def test_work_in_complex_numbers_counts_as_such(tmp_path: Path) -> None:
    """Fractions grow evenly, up to one near the end."""
    told: list[float] = []
    A = oc.from_array(tall(700, 256, "c16"), tmp_path / "A", progress=False)
    linalg.svd(A, 5, tol=None, power=2, memory="1 MB", progress=lambda done, _: told.append(done))
    assert max(np.diff(told)) < 0.1


def test_no_less_than_nothing_is_left() -> None:
    """Never report a negative time left if a call does more work than planned."""
    left: list[float] = []
    with Meter("more", 1.0, lambda done, seconds: left.append(seconds)) as meter:
        meter.advance(0.5)
        meter.advance(0.7)
    assert left[0] > 0
    assert left[1:] == [0, 0]


def test_a_resumed_solve_begins_where_it_was(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    stop_after(3, A, memory=400_000)
    told: list[float] = []
    solve(A, np.ones(N), memory=400_000, progress=lambda done, left: told.append(done))
    assert told[0] > 0.1


ITERATED: dict[str, Callable[..., object]] = {
    "gram": lambda blocks, **options: linalg.gram(blocks, **options),
    "qr": lambda blocks, **options: linalg.qr(blocks, **options),
    "lstsq": lambda blocks, **options: linalg.lstsq(
        ((block, np.ones(10)) for block in blocks), **options
    ),
}


@pytest.mark.parametrize("verb", ITERATED)
def test_of_an_iterator_the_end_is_told_and_that_it_goes_on(verb: str) -> None:
    block = random_matrix(10, "f8")
    told: list[tuple[float, float]] = []

    def tell(fraction: float, seconds_left: float) -> None:
        told.append((fraction, seconds_left))

    ITERATED[verb](iter([block] * 2000), memory=300_000, progress=tell)
    assert told[-1] == (1.0, 0.0)
    assert len(told) > 2
    assert all(fraction == 0 and np.isnan(left) for fraction, left in told[:-1])
    with pytest.raises(InvalidError, match="progress must be"):
        ITERATED[verb](iter([block] * 12), progress="bad")


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_is_no_choice_is_refused(tmp_path: Path, given: Any) -> None:
    a = random_matrix(20, "f8")
    A = on_disk(tmp_path / "Z", a)
    out = tmp_path / "there"
    options: dict[str, Any] = {"if_exists": "overwrite", "progress": given}
    oc.from_array(a, out)
    calls: list[Callable[[], object]] = [
        lambda: solve(A, np.ones(20), progress=given),
        lambda: linalg.lu_factor(A, out=out, **options),
        lambda: linalg.cho_factor(A, out=out, **options),
        lambda: linalg.qr_factor(A, out=out, **options),
        lambda: linalg.qr(A, mode="economic", out=out, **options),
        lambda: linalg.svd(A, 3, out=out, **options),
        lambda: linalg.gram(a, out=out, **options),
        lambda: linalg.lstsq(a, np.ones(20), progress=given),
        lambda: linalg.matmul(A, A, out=out, **options),
        lambda: linalg.gmres(A, np.ones(20), progress=given),
        lambda: oc.from_array(a, out, **options),
        lambda: oc.export_array(A, tmp_path / "a.npy", progress=given),
        lambda: oc.verify(out, progress=given),
    ]
    for call in calls:
        with pytest.raises(InvalidError, match=f"progress must be True, False or .* {given!r}"):
            call()
        assert {p.name for p in tmp_path.iterdir()} == {"Z", "there"}
        np.testing.assert_array_equal(oc.open_array(out)[...], a)


def test_a_log_file_gets_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Each unit of work reads this clock twice, so it takes two seconds."""
    with Meter("factoring Z", 60.0, True) as meter:
        for _ in range(60):
            meter.advance(1.0)
    lines = capsys.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 20
    done = [int(line.removeprefix("factoring Z: ").partition("%")[0]) for line in lines]
    assert done == sorted(done)
    assert len(set(done)) == len(done)
    assert all(line.endswith(" left") for line in lines)


def test_lines_of_work_without_a_known_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("rows", None, True) as meter:
        for _ in range(40):
            meter.advance(1.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert all(line.startswith("rows: ") and line.endswith(" so far") for line in lines)


@pytest.mark.parametrize("given", [False, lambda done, left: None])
def test_no_lines_unless_asked_for(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("rows", 100.0, given) as meter:
        for _ in range(100):
            meter.advance(1.0)
    assert capsys.readouterr().err == ""


def test_a_log_file_that_is_full_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full, Meter("rows", 100.0, True) as meter:
        monkeypatch.setattr("sys.stderr", full)
        for _ in range(100):
            meter.advance(1.0)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fake of IPython as in a kernel."""
    shown: list[str] = []
    Shell = type("ZMQInteractiveShell", (), {})

    def display(text: str, display_id: bool) -> object:
        assert display_id
        shown.append(text)
        return types.SimpleNamespace(update=shown.append)

    ipython = types.SimpleNamespace(
        get_ipython=Shell, display=types.SimpleNamespace(display=display, HTML=str)
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with Meter("<Z>", 20.0, True) as meter:
        for _ in range(20):
            meter.advance(1.0)
    assert shown[0] == "&lt;Z&gt;"
    assert any('<progress value="0.5000" max="1"></progress> 50%, ' in text for text in shown)
    assert shown[-1] == ""
