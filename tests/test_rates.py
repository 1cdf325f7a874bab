"""Measured rates, and the file that stores them."""

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import outcore as oc
from outcore.cli import main
from outcore.errors import DiskFullError
from outcore.machine import disk_rates, processor, rates, timing
from outcore.machine.rates import Rates

MADE_UP = Rates(
    read_bytes_s=2e9,
    write_bytes_s=1e9,
    gemm_flops_s=dict.fromkeys(rates.DTYPES, 1e11),
    cores=8,
    threads=8,
    kernels="openblas 0.3.30 SkylakeX",
    measured_at="2026-01-02T03:04:05+00:00",
    directory="/scratch",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outcore" / "rates.json"


def test_measure_gives_plausible_rates_keeps_them_and_leaves_nothing_behind(
    tmp_path: Path, cache: Path
) -> None:
    assert rates.stored(tmp_path) is None
    found = rates.measure(tmp_path, 0.4)
    assert 1e5 < found.read_bytes_s < 1e12
    assert 1e5 < found.write_bytes_s < 1e12
    assert set(found.gemm_flops_s) == set(rates.DTYPES)
    assert all(1e7 < rate < 1e16 for rate in found.gemm_flops_s.values())
    assert found.cores >= 1
    assert found.threads >= 1
    assert list(tmp_path.iterdir()) == [cache.parent.parent]
    assert rates.stored(tmp_path) == found
    assert rates.stored_or_measured(tmp_path) == found


def test_a_directory_not_made_yet_has_the_rates_of_the_one_above(tmp_path: Path) -> None:
    kept = dataclasses.replace(MADE_UP, directory=str(tmp_path), kernels="K", threads=3)
    rates._keep(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates.blas_choice, "in_use", lambda: ("K", 3))
        assert rates.stored(tmp_path / "not" / "yet") == kept


def test_rates_of_other_kernels_or_threads_are_not_used(tmp_path: Path) -> None:
    rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path), kernels="other"))
    assert rates.stored(tmp_path) is None


def test_several_are_kept_beside_each_other(tmp_path: Path, cache: Path) -> None:
    for threads in (1, 2):
        rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path), threads=threads))
    assert len(json.loads(cache.read_text())["rates"]) == 2
    assert [path.name for path in cache.parent.iterdir()] == ["rates.json"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": 99, "rates": {}}', '{"format": 1, "rates": 7}', "\x00\xff"],
)
def test_a_corrupt_cache_is_ignored_and_rewritten(
    tmp_path: Path, cache: Path, content: str
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content.encode("latin-1"))
    assert rates.stored(tmp_path) is None
    rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path)))
    assert len(json.loads(cache.read_text())["rates"]) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"read_bytes_s": "fast"},
        {"read_bytes_s": float("nan")},
        {"write_bytes_s": 0},
        {"gemm_flops_s": {"float64": 1e9}},
        {"gemm_flops_s": None},
        {"cores": None},
    ],
)
def test_a_damaged_entry_is_ignored(
    tmp_path: Path, cache: Path, damage: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates.blas_choice, "in_use", lambda: (MADE_UP.kernels, MADE_UP.threads))
    rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path)))
    assert rates.stored(tmp_path) is not None
    document = json.loads(cache.read_text())
    (entry,) = document["rates"].values()
    entry.update(damage)
    cache.write_text(json.dumps(document))
    assert rates.stored(tmp_path) is None


def test_a_cache_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path)))
    assert rates.stored(tmp_path) is None


def test_a_relative_cache_directory_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rates._cache_file() == tmp_path / ".cache" / "outcore" / "rates.json"


def test_files_are_removed_when_measuring_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> tuple[float, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk_rates, "_passes", fail)
    with pytest.raises(KeyboardInterrupt):
        rates.measure(tmp_path, 0.1)
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_rates, "_MOST_TILES", 1)
    with pytest.raises(DiskFullError, match=r"need 33554432 bytes .* have .*; free some room"):
        rates.measure(tmp_path, 0.1)


def full(directory: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))


def read_only(directory: Path) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))


@pytest.mark.parametrize(
    ("fails", "why"), [(full, "No space left on device"), (read_only, "Read-only file system")]
)
def test_a_plan_comes_where_nothing_can_be_written(
    fails: Callable[[Path], None], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_rates.tempfile, "mkdtemp", lambda **given: fails(given["dir"]))
    with pytest.raises(OSError, match=why):
        rates.measure(tmp_path, 0.1)
    given = {"n": 3000, "memory": "20 MB"}
    planned = oc.plan("lu", path=tmp_path, **given)  # type: ignore[call-overload]
    nominal = oc.plan("lu", path=tmp_path, rates=rates.NOMINAL, **given)  # type: ignore[call-overload]
    assert dataclasses.replace(planned, notes=[]) == nominal
    (note,) = planned.notes
    assert why in note
    assert "nominal rates, because none could be measured" in str(planned)
    assert nominal.notes == []
    compared = oc.compare_methods(path=tmp_path, **given)  # type: ignore[arg-type]
    assert compared.notes == planned.notes
    assert note in str(compared)
    result = CliRunner().invoke(
        main, ["plan", "lu", "-n", "3000", "--memory", "20MB", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert note in result.stdout
    assert rates.stored(tmp_path) is None, "they are not kept"


def test_a_plan_comes_where_too_little_room_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_rates, "_MOST_TILES", 1)
    planned = oc.plan("solve", n=1000, factor_dtype="f4", memory="2 MB", path=tmp_path)
    assert "need 33554432 bytes" in planned.notes[-1]
    assert "float32" in planned.notes[0]


def test_ctrl_c_ends_a_plan_that_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk_rates, "_passes", stop)
    with pytest.raises(KeyboardInterrupt):
        oc.plan("lu", n=1000, memory="2 MB", path=tmp_path)


def test_the_better_rates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the better of each rate on its own, whatever the load during the other measurements."""
    monkeypatch.setattr(rates.blas_choice, "in_use", lambda: (MADE_UP.kernels, MADE_UP.threads))
    first = dataclasses.replace(MADE_UP, directory=str(tmp_path), request_s=2e-5)
    gemm = {**MADE_UP.gemm_flops_s, "float64": 3e10, "float32": 2e11}
    second = dataclasses.replace(
        first, read_bytes_s=3e9, write_bytes_s=1e8, gemm_flops_s=gemm, request_s=1e-5,
        measured_at="2026-02-03T04:05:06+00:00",
    )  # fmt: skip
    found = iter([first, second])
    monkeypatch.setattr(rates, "_measured_now", lambda *_: next(found))
    assert rates.measure(tmp_path) == first
    measured = rates.measured(tmp_path)
    assert measured.now == second
    assert measured.kept == rates.stored(tmp_path)
    assert measured.kept == dataclasses.replace(
        second, write_bytes_s=1e9, gemm_flops_s={**gemm, "float64": 1e11}
    )


def test_rates_of_writes_that_a_cache_answered_are_forgotten(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignore rates of format 1, which measured repeated writes of the same blocks."""
    monkeypatch.setattr(rates.blas_choice, "in_use", lambda: (MADE_UP.kernels, MADE_UP.threads))
    rates._keep(dataclasses.replace(MADE_UP, directory=str(tmp_path)))
    document = json.loads(cache.read_text())
    cache.write_text(json.dumps(document | {"format": 1}))
    assert rates.stored(tmp_path) is None


def test_no_block_is_written_twice_and_each_pass_ends_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, events = [], []

    class Recorded(disk_rates.WriteBehind):
        def write(self, box: Any, data: Any) -> None:
            written.append(box[0].start)
            super().write(box, data)

        def flush(self, *, sync: bool = False) -> None:
            super().flush(sync=sync)
            events.append("synced" if sync else "flushed")

    timed = timing._timed

    def ends_durably(run: Callable[[int], object], count: int) -> float:
        before = len(written)
        found = timed(run, count)
        if len(written) > before:
            assert events[-2:] == ["synced", "flushed"]
            events.append("timed")
        return found

    monkeypatch.setattr(disk_rates, "WriteBehind", Recorded)
    monkeypatch.setattr(timing, "_timed", ends_durably)
    disk_rates.disk_rates(tmp_path, 0.2)
    assert events.count("timed") == events.count("synced") >= 1
    assert 2 <= len(written) == len(set(written)) <= disk_rates._MOST_TILES


class Work:
    """Units of work, each of which takes a fixed time of a clock that `timing` reads."""

    def __init__(self, unit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self._unit_s = 0, unit_s
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=self._clock_s))

    def _clock_s(self) -> float:
        return self.done * self._unit_s

    def run(self, count: int) -> None:
        self.done += count


@pytest.mark.parametrize("most", [2, 3, 7, 8, 64])
@pytest.mark.parametrize("unit_s", [0.0, 1e-4])
def test_a_bound_on_units_holds(most: int, unit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(unit_s, monkeypatch)
    assert timing.median_rate(work.run, 0.01, most) > 0
    assert 2 <= work.done <= most


def test_who_else_used_the_processors_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = iter(
        [processor.Clocks(10.0, 100.0, 5.0, 1.0), processor.Clocks(14.0, 110.0, 6.0, 5.0)]
    )
    monkeypatch.setattr(processor, "_clocks", lambda numbers: next(clocks))
    monkeypatch.setattr(rates, "_measured_now", lambda *_: MADE_UP)
    monkeypatch.setattr(rates, "_keep", lambda _: None)
    use = rates.measured(tmp_path).use
    assert (use.others, use.stolen) == (1.5, 0.25), "6 of 10 busy seconds, in 4 seconds"


def test_median_rate_counts_units(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(1e-4, monkeypatch)
    assert timing.median_rate(work.run, 0.05) == pytest.approx(1e4)
    assert work.done * 1e-4 == pytest.approx(0.05, rel=0.1)
