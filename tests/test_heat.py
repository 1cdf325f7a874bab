"""examples/heat.py under mpiexec: killed, and gone on with from its checkpoint on fewer ranks."""

from pathlib import Path

import xarray
from test_pool_comm import mpiexec

HEAT = Path(__file__).parent.parent / "examples/heat.py"


def test_killed_and_restarted_on_other_ranks(tmp_path: Path) -> None:
    where = str(tmp_path / "heat")
    assert mpiexec(3, HEAT, where, "--die").returncode != 0
    with xarray.open_zarr(where) as found:
        assert found.sizes["time"] == 8
    done = mpiexec(2, HEAT, where, "--go-on")
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first in {f"going on from step {step} with 2 ranks" for step in (120, 140)}
    assert last.startswith("240 steps, 12 of them")
    with xarray.open_zarr(where) as found:
        assert dict(found.sizes) == {"time": 12, "y": 96, "x": 96}
