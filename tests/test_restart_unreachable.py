"""A restart from a pool with unreachable servers: the error does not call the data damaged."""

import warnings

import numpy as np
import pytest
from own_daemons import OwnDaemons
from served_pools import in_memory
from timeouts import TooBusyError, with_enough_time

import outcore as oc
from outcore import _core
from outcore.errors import DiskError


def test_a_server_that_is_away_is_not_taken_for_damage() -> None:
    with_enough_time(restart_without_a_server, 1)


def restart_without_a_server(timeout_s: int) -> None:
    with in_memory() as home:
        daemons = OwnDaemons(home, [home / "a", home / "b"])
        address = daemons.daemons[0].addresses[0]
        try:
            try:
                core = _core.Pool.connect([address], str(daemons.key), patience_s=timeout_s)
                pool = oc.Pool(core, "outcore://there:1/", is_shared=True)
                group = oc.ArrayGroup(pool / "run", {"u": oc.ArraySpec((4, 6), chunks=(1, 6))})
                for number in range(2):
                    group.checkpoint({"u": np.full((4, 6), float(number))})
            except DiskError as error:
                raise TooBusyError from error
            with pool:
                daemons.daemons.pop().stop()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    with pytest.raises(DiskError, match="is the server running"):
                        group.restart()
                daemons._start("io", home / "b")
                try:
                    found = group.restart()
                except DiskError as error:
                    raise TooBusyError from error
                assert found.number == 1
                assert (found["u"] == 1).all()
        finally:
            daemons.stop()
