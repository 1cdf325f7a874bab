"""A served pool: equal views for two clients at once, and write access."""

from pathlib import Path

import numpy as np
import pytest
from linpack import on_disk, one_thread, packed, random_matrix
from served import make_key

import outcore as oc
from outcore.errors import ClosedError, DeniedError, InvalidError, OutcoreError

__all__ = ["one_thread"]


def test_two_clients_share_a_pool(served: tuple[str, Path]) -> None:
    url, key = served
    with oc.connect(url, key=key) as one, oc.connect(url + "/", key=key) as other:
        data = np.random.default_rng(0).random((200, 300))
        with oc.from_array(data, one / "A", chunks=(64, 64), progress=False) as A:
            assert (oc.open_array(other / "A")[...] == data).all()
            A[3:5, 7] = 1
            A.flush()
        with oc.open_array(other / "A") as B:
            assert (B[3:5, 7] == 1).all()
        with one.open("f", "w", hints={"stripe_unit_bytes": 4096}) as file:
            file.write(bytes(range(256)) * 64)
            before = one.messages
            assert (file.read_strided(5, 0, 3, 16, 1024) == [5, 6, 7] * 16).all()
            assert one.messages - before == 2
        assert other.stat("f").nbytes == 256 * 64
        assert str(one / "f") == f"{url}/f"
    with pytest.raises(ClosedError):
        one.ls()


def test_lu_on_a_served_pool_is_the_same_to_the_bit(
    served: tuple[str, Path], tmp_path: Path
) -> None:
    url, key = served
    a, found = random_matrix(200, "c16"), []
    with oc.connect(url, key=key) as pool:
        for where in (tmp_path, pool):
            on_disk(where / "Z", a, (32, 16)).close()
            lu = oc.linalg.lu_factor(where / "Z", memory=400_000, threads=1, progress=False)
            found.append(packed(lu))
    assert (found[0] == found[1]).all()


def test_a_key_is_needed(served: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = served
    wrong = make_key(tmp_path / "wrong")
    with pytest.raises(DeniedError):
        oc.connect(url, key=wrong)
    with pytest.raises(OutcoreError):
        oc.connect(url)
    for wrong in ("host:7171", "outcore://a:1,b", "outcore://a:1, b:2", "outcore://a:1/name"):
        with pytest.raises(InvalidError, match="no address of a pool"):
            oc.connect(wrong)
