"""The benchmarks run, at sizes too small to measure speed."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from benchmarks import dask_linalg, distributions, distributions_page, environment, lu, report
from benchmarks.cost_curve import draw
from benchmarks.figures import Figure, Target, table
from benchmarks.rounds import alternate

import outcore as oc

ROOT = Path(__file__).parents[1]


def run(
    tmp_path: Path, *arguments: str, stand_ins: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the command with results, scratch files and stored rates in the test's directory.

    Stand-ins replace reference tools that are not installed.
    """
    path = os.environ["PATH"] + (f":{ROOT}/tests/stand_ins" if stand_ins else "")
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--tiny", "--output", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize(
    "name",
    [
        "lu",
        "cholesky",
        "matmul",
        "streaming",
        "blocks",
        "boxes",
        "lstsq",
        "svd",
        "mixed",
        "rechunk",
        "permute",
        "rivals",
        "distributions",
        "pool_embedded",
        "pool_served",
        "pool_disks",
        "pool_network",
        "pool_requests",
        "pool_watched",
        "pool_hdf5",
        "mount",
        "collective",
        "collective_disks",
        "checkpoint",
        "scipy_lu",
        "dask_linalg",
        "cliff",
    ],
)
def test_a_benchmark_leaves_its_result_and_nothing_else(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["command"] == f"python -m benchmarks {name} --tiny"
    assert found["machine"]["versions"]["numpy"]
    assert all(row["values"] or row["skipped"] for row in found["figures"])
    left = {f"{name}.json", "cache"} | ({"cost-curve.png"} if name == "cliff" else set())
    assert {path.name for path in tmp_path.iterdir()} <= left
    assert f"### {name}" in report.render(tmp_path)
    beyond = [row["values"] for row in found["figures"] if "beyond the plan" in row["what"]]
    cases = {"lu": 3, "cholesky": 2, "lstsq": 2, "matmul": 2}.get(name, 0)
    assert beyond[:cases] == [[0]] * cases
    # The last matrix of LU has chunks larger than memory, of which block columns copy parts.
    assert len(beyond[cases:]) == (name == "lu")
    assert all(words >= 0 for [words] in beyond[cases:])


def test_predictions_of_layouts() -> None:
    def point(access: str, layout: str, rate: float, cost: float) -> distributions.Point:
        return distributions.Point(4, access, layout, (8, 8), [rate, rate, 9e9], 1.5, 2.0, cost)

    points = [
        point("rows", "hilbert", 90e6, 3.0), point("rows", "blocks", 91e6, 4.0),
        point("planes:0", "hilbert", 10e6, 3.0), point("planes:0", "blocks", 20e6, 3.0),
        point("points", "hilbert", 10e6, 1.0), point("points", "blocks", 20e6, 3.0),
    ]  # fmt: skip
    *figures, share = distributions.outcome(points).figures
    assert [figure.median for figure in figures] == [90 / 91, 1, 0.5]
    assert share.median == 2 / 3
    text = distributions_page.tables(points)
    assert "| `rows` | **90** (1.5; 2) | **91** (1.5; 2) | hilbert |" in text
    assert "| `planes:0` | 10 (1.5; 2) | **20** (1.5; 2) | any |" in text
    assert "in 2 of 3." in text


@pytest.mark.exhaustive(keep=0)
def test_the_tables_of_the_paper_on_lu(tmp_path: Path) -> None:
    done = run(tmp_path, "paper_lu")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "paper_lu.json").read_text())["figures"]
    assert [row["what"] for row in figures] == ["n = 512, 2 slabs", "n = 512, 6 slabs"]
    assert [row["details"]["report"]["method"] for row in figures] == ["slabs"] * 2
    assert {path.name for path in tmp_path.iterdir()} <= {"paper_lu.json", "cache"}


@pytest.mark.exhaustive(keep=0)
def test_both_sides_of_dask_are_right(tmp_path: Path) -> None:
    done = run(tmp_path, "dask_linalg")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "dask_linalg.json").read_text())
    rows = found["figures"]
    if rows[0]["skipped"]:
        pytest.skip(rows[0]["skipped"])
    assert [row["what"].split()[0] for row in rows] == ["lu", "solve", "cholesky", "qr", "solve,"]
    for row in rows[:4]:
        assert "residuals below 1e-10" in row["what"]
        assert max(row["details"]["residuals"].values()) < 1e-13
        assert all("residual" in row[side] for side in ("ours", "rival"))
    assert found["machine"]["versions"]["dask"] == importlib.metadata.version("dask")


def test_what_is_wrong_has_a_residual(tmp_path: Path) -> None:
    a = np.random.default_rng(1).random((40, 40)) + 40 * np.eye(40)
    A = oc.from_array(a, tmp_path / "A", order="F", progress=False)
    for good, expected in ((True, 1e-15), (False, dask_linalg.MOST_RESIDUAL)):
        off = 0.0 if good else 1e-3
        np.save(tmp_path / "x.npy", np.linalg.solve(a, np.ones(40)) * (1 + off))
        np.save(tmp_path / "r.npy", np.linalg.qr(a, mode="r") + off)
        for case, name in (("solve", "x.npy"), ("qr", "r.npy")):
            found = dask_linalg.residual("dask", case, A, tmp_path / name)
            assert (found < expected) if good else (found > expected)
        lower = np.linalg.cholesky(a @ a.T) + off
        zarr.create_array(str(tmp_path / f"C{off}" / "0"), data=lower)
        S = oc.from_array(a @ a.T, tmp_path / f"S{off}", order="F", progress=False)
        found = dask_linalg.residual("dask", "cholesky", S, tmp_path / f"C{off}")
        assert (found < expected) if good else (found > expected)


@pytest.mark.exhaustive(keep=0)
def test_rows_of_lu_are_named_by_the_method_that_was_taken(tmp_path: Path) -> None:
    done = run(tmp_path, "lu")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "lu.json").read_text())["figures"]
    methods = [row["details"]["report"]["method"] for row in rows if "plan's time" in row["what"]]
    assert set(methods) == {"slabs", "block-columns"}
    for number, row in enumerate(rows):
        assert row["what"].startswith(f"LU by {methods[number // 5].replace('-', ' ')}, ")
    name = "tournament pivoting of 256 of 512 columns"
    assert lu.method_of({"method": name}) == "tournament pivoting"


def test_streaming_without_fio_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("fio") is None
    done = run(tmp_path, "streaming", stand_ins=False)
    assert done.returncode == 0, done.stderr
    assert "skipped: fio is not installed" in done.stdout


def test_an_unknown_benchmark_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "nonsense")
    assert done.returncode == 2
    assert "there is no benchmark 'nonsense'" in done.stderr


def test_scratch_files_go_when_a_benchmark_fails(tmp_path: Path) -> None:
    (tmp_path / "rivals.json").mkdir()
    assert run(tmp_path, "rivals").returncode == 1
    assert not list(tmp_path.glob("scratch-*"))


def test_children_do_not_inherit_a_choice_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Generic")
    monkeypatch.setenv("OPENBLAS_VERBOSE", "0")
    assert {"OPENBLAS_CORETYPE", "OPENBLAS_VERBOSE"} <= set(environment.removed())
    assert not any(name.startswith("OPENBLAS_") for name in environment.for_child())
    assert environment.for_child(keep=True)["OPENBLAS_CORETYPE"] == "Generic"


def test_contenders_alternate_and_ratios_are_of_the_same_round() -> None:
    order: list[str] = []
    values = {"a": iter([9.0, 1.0, 2.0, 3.0]), "b": iter([9.0, 2.0, 2.0, 2.0])}

    def contender(name: str) -> float:
        order.append(name)
        return next(values[name])

    found = alternate(
        "x", {"a": lambda: contender("a"), "b": lambda: contender("b")}, rounds=3, warmups=1
    )
    assert "".join(order) == "abababab"
    assert found.ratios("a", "b") == [0.5, 1.0, 1.5]
    figure = Figure("x", found.ratios("a", "b"), Target("<", 1))
    assert figure.measured == "1 [0.5–1.5]"  # noqa: RUF001
    assert figure.verdict == "**no**"


def test_a_table_has_only_the_columns_that_are_used() -> None:
    text = table([Figure("speed", [0.5], Target("≤", 1.08)), Figure("other", skipped="no fio")])
    assert [line.count("|") for line in text.splitlines()] == [5, 5, 5, 5]
    assert "skipped: no fio" in text


def test_the_cost_curve_is_drawn(tmp_path: Path) -> None:
    ends = {"outcore": "done", "memmap": "stopped", "in memory": "done"}
    points = [
        {"way": way, "n": n, "share": n / 2000, "seconds": [n / 1e3], "median_s": n / 1e3,
         "end": end if n == 4000 else "done"}
        for way, end in ends.items() for n in (1000, 2000, 4000)
    ]  # fmt: skip
    points[-1] |= {"seconds": [], "median_s": float("nan"), "end": "out of memory"}
    draw({"limit_bytes": 16_000_000, "points": points}, tmp_path / "images" / "curve.png")
    assert (tmp_path / "images" / "curve.png").read_bytes().startswith(b"\x89PNG")
