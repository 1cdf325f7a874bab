"""Programs of the documents under mpiexec: heat.py is killed, and resumes on fewer ranks."""

import re
from pathlib import Path

import numpy as np
import pytest
import xarray
from served import serve
from served_pools import in_memory
from test_pool_comm import mpiexec

import outcore as oc

ROOT = Path(__file__).parent.parent
HEAT = ROOT / "examples/heat.py"


def test_killed_and_restarted_on_other_ranks(tmp_path: Path) -> None:
    where = str(tmp_path / "heat")
    assert mpiexec(3, HEAT, where, "--die").returncode != 0
    with xarray.open_zarr(where) as found:
        assert found.sizes["time"] == 8
    done = mpiexec(2, HEAT, where, "--go-on")
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first in {f"resuming from step {step} with 2 ranks" for step in (30, 35)}
    assert last.startswith("60 steps, 12 of them")
    with xarray.open_zarr(where) as found:
        assert dict(found.sizes) == {"time": 12, "y": 96, "x": 96}


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_the_same_in_a_served_pool(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_memory() as home, serve(home, way) as (url, key), oc.connect(url, key=key) as pool:
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        assert mpiexec(3, HEAT, "heat", f"--pool={url}", "--die").returncode != 0
        with oc.ArrayGroup(pool / "heat") as group:
            assert group.steps == 8
        done = mpiexec(2, HEAT, "heat", f"--pool={url}", "--go-on")
        assert done.returncode == 0, done.stderr
        first, last = done.stdout.splitlines()
        assert first in {f"resuming from step {step} with 2 ranks" for step in (30, 35)}
        assert last.startswith("60 steps, 12 of them")
        # Explicit Euler shrinks the mode by the same factor in each step.
        h = 1 / 97
        x = h * (1 + np.arange(96))
        mode = np.outer(np.sin(np.pi * x), np.sin(2 * np.pi * x))
        factor = 1 - 0.8 * (np.sin(np.pi * h / 2) ** 2 + np.sin(np.pi * h) ** 2)
        with oc.ArrayGroup(pool / "heat") as group:
            for step in (0, 7, 8, 11):
                assert abs(group["u"][step] - factor ** (5 * step) * mode).max() < 1e-12
            assert abs(group.restart()["u"] - factor**60 * mode).max() < 1e-12


@pytest.mark.parametrize("size", [1, 3])
def test_the_page_on_checkpoints(size: int, tmp_path: Path) -> None:
    """Run the page's part on MPI, which the test of the other pages cannot run."""
    page = (ROOT / "docs/how-to/checkpoints.md").read_text()
    (code,) = re.findall(r"```python\n(from mpi4py import MPI\n.*?)```", page, re.DOTALL)
    script = tmp_path / "job.py"
    begin = f"import os\nimport numpy as np\nimport outcore as oc\nos.chdir({str(tmp_path)!r})\n"
    script.write_text(begin + code + "assert local.shape == shape\nassert not local.any()\n")
    done = mpiexec(size, script)
    assert done.returncode == 0, done.stderr
    with oc.ArrayGroup(tmp_path / "run") as group:
        assert group.checkpoints() == [0]
        assert group.restart()["u"].shape == (4000, 4000)
