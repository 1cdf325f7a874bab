"""A restart from a pool with unreachable servers: the error does not call the data damaged."""

import warnings

import numpy as np
import pytest
from own_daemons import OwnDaemons
from served_pools import in_memory

import outcore as oc
from outcore import _core
from outcore.errors import DiskError


def test_a_server_that_is_away_is_not_taken_for_damage() -> None:
    with in_memory() as home:
        daemons = OwnDaemons(home, [home / "a", home / "b"])
        address = daemons.daemons[0].addresses[0]
        core = _core.Pool.connect([address], str(daemons.key), patience_s=1)
        try:
            with oc.Pool(core, "outcore://there:1/", is_shared=True) as pool:
                group = oc.ArrayGroup(pool / "run", {"u": oc.ArraySpec((4, 6), chunks=(1, 6))})
                for number in range(2):
                    group.checkpoint({"u": np.full((4, 6), float(number))})
                daemons.daemons.pop().stop()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with pytest.raises(DiskError, match="is the server running"):
                        group.restart()
                daemons._start("io", home / "b")
                found = group.restart()
                assert found.number == 1
                assert (found["u"] == 1).all()
        finally:
            daemons.stop()
