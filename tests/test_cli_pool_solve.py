"""``solve``, ``plan``, ``report``, ``info``, ``verify``, ``convert`` on arrays in pools, by URL."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from command_line import outcore
from linpack import on_disk, random_matrix
from served import SCHEMES, serve

import outcore as oc
from outcore.storage.pool_path import is_url

N = 300
SMALL = ("--memory", "400KB")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory for the caller, without a key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTCORE_KEY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("outcore.machine.rates._QUICK_S", 0.1)
    return tmp_path


@pytest.fixture(params=[*SCHEMES, "directory"])
def pool(request: pytest.FixtureRequest, here: Path) -> Iterator[tuple[str, list[str]]]:
    """Return the prefix of names in a pool with A and B, and the options that open it."""
    if request.param == "directory":
        with oc.Pool.embedded([here / "a"]) as embedded:
            fill(embedded)
        yield f"outcore:{here}/a::", []
        return
    with serve(here, request.param) as served:
        with oc.connect(served.url, key=served.key) as connected:
            fill(connected)
        end = "::" if request.param == "unix" else "/"
        yield served.url + end, ["--key", str(served.key)]


def fill(pool: oc.Pool) -> None:
    on_disk(pool / "A", random_matrix(N, "f8")).close()
    oc.from_array(right_hand_sides(), pool / "B", order="F", progress=False).close()


def right_hand_sides() -> Any:
    return np.random.default_rng(5).standard_normal((N, 2))


def done(*arguments: object) -> str:
    result = outcore(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.exhaustive(every=2)
def test_from_a_pool_to_a_pool(pool: tuple[str, list[str]], here: Path) -> None:
    url, key = pool
    said = done(
        "solve", f"{url}A", f"{url}B", "-o", f"{url}x", *SMALL, *key, "--report", f"{url}run"
    )
    assert said.startswith("plan: about ")
    assert said.endswith(f"x is in {url}x\n")
    expected = scipy.linalg.solve(random_matrix(N, "f8"), right_hand_sides())
    done("convert", f"{url}x", "x.npy", *key)
    assert np.allclose(np.load("x.npy"), expected, rtol=1e-9, atol=1e-9)
    # No factors are left, and every verb with paths finds the files.
    assert done("ls", url, *key).split() == ["A", "B", "run", "x"]
    assert "300 x 2" in done("info", f"{url}x", *key)
    assert done("verify", f"{url}x", *key).startswith(f"{url}x")
    assert "backward error" in done("report", f"{url}run", "-o", "page.html", *key)
    assert Path("page.html").stat().st_size > 1000
    assert "exists" in outcore("solve", f"{url}A", f"{url}B", "-o", f"{url}x", *key).stderr


@pytest.mark.exhaustive(every=3)
def test_between_a_pool_and_plain_files(pool: tuple[str, list[str]], here: Path) -> None:
    url, key = pool
    np.save("b.npy", right_hand_sides())
    document = json.loads(
        done("solve", f"{url}A", "b.npy", "-o", "x.npy", *SMALL, *key, "--json", "--factors",
             f"{url}F", "--keep-factors")
    )  # fmt: skip
    assert document["plan"]["bytes_read"] == document["report"]["planned_bytes_read"]
    expected = scipy.linalg.solve(random_matrix(N, "f8"), right_hand_sides())
    assert np.allclose(np.load("x.npy"), expected, rtol=1e-9, atol=1e-9)
    # The next call uses the factors.
    again = done("solve", f"{url}A", f"{url}B", "-o", here / "X", "--factors", f"{url}F", *key)
    assert "used the factors in" in again
    with oc.open_array(here / "X") as x:
        assert np.allclose(x[...], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.exhaustive
def test_a_plan_is_for_the_disks_of_the_pool(
    pool: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = pool
    planned = json.loads(
        done("plan", "lu", "-n", 5000, "--memory", "20MB", f"{url}d", *key, "--json")
    )
    assert planned["path"] == f"{url}d"
    assert planned["seconds"] > 0
    # The plan leaves nothing in the pool, and stores the rates, so the next one measures nothing.
    assert done("ls", "-a", url, *key).split() == ["A", "B"]
    monkeypatch.setattr("outcore.machine.rates.measure", None)
    done("plan", "lu", "-n", 5000, "--memory", "20MB", f"{url}", *key)
    # A pool has the free space of its disks.
    result = outcore("plan", "lu", "-n", 10**7, "--memory", "500GB", url, *key)
    assert result.exit_code == 1
    assert "on disk" in result.stderr or "of memory" in result.stderr


def test_files_that_are_no_arrays_stay_outside(pool: tuple[str, list[str]]) -> None:
    url, key = pool
    for b, x in ((f"{url}b.npy", "x.npy"), (f"{url}B", f"{url}x.npy")):
        result = outcore("solve", f"{url}A", b, "-o", x, *key)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "a .npy file is a plain one" in result.stderr


@pytest.mark.parametrize("verb", ["solve", "plan", "report", "info", "verify", "convert"])
def test_a_pool_that_is_not_there_is_one_clear_error(verb: str, here: Path) -> None:
    url = f"outcore:{here}/none::A"
    more = {"solve": [url, "-o", url], "convert": ["A"]}.get(verb, [])
    arguments = ["lu", "-n", 10, url] if verb == "plan" else [url, *more]
    assert is_url(url)
    result = outcore(verb, *arguments)
    assert result.exit_code == 1
    assert "there is neither a socket nor a directory" in result.stderr
