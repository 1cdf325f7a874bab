"""One pool opened twice in a process: by one address, and by two."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from own_daemons import OwnDaemons
from served import daemon

import outcore as oc
from outcore.errors import BusyError, InvalidError, OutcoreError
from outcore.files.move import move_files
from outcore.storage.volumes import exclusive, on_one_disk, place

DATA = np.arange(100.0)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[OwnDaemons]:
    """Run the daemons of a pool of two servers."""
    running = OwnDaemons(tmp_path, [tmp_path / "a", tmp_path / "b"])
    yield running
    running.stop()


def test_two_are_as_two_processes(daemons: OwnDaemons) -> None:
    with daemons.connect() as one, daemons.connect() as two:
        A = oc.from_array(DATA, one / "A", progress=False)
        with oc.open_array(two / "A", "r+") as B:
            B[3] = -1
        assert A[3] == -1
        with exclusive(place(one / "d"), "a test"):  # noqa: SIM117
            with pytest.raises(BusyError):
                with exclusive(place(two / "d"), "a test"):
                    pass
        # A name from one connection equals the same name from the other.
        assert one / "A" == two / "A"
        assert len({one / "A", two / "A"}) == 1
        one.open("f", "w").close()
        handle = one.core.handle("f")
        two.mv(one / "f", "g")
        one.mkdir("d")
        move_files(two / "g", one / "d/h", progress=False)
        assert two.core.handle("d/h") == handle, "renamed"
        with pytest.raises(InvalidError, match="onto itself"):
            oc.from_array(one / "A", two / "A", if_exists="overwrite", progress=False)
        A.close()


def test_closing_one_leaves_the_other(daemons: OwnDaemons) -> None:
    one = daemons.connect()
    A = oc.from_array(DATA, one / "A", progress=False)
    url = str(one / "A")
    two = daemons.connect()
    B = oc.open_array(url)
    assert B.path.root is (two / "").root, "the one that was opened last"
    two.close()
    with pytest.raises(OutcoreError, match="closed"):
        B[3]
    np.testing.assert_array_equal(A[...], DATA)
    with oc.open_array(url) as C:
        np.testing.assert_array_equal(C[...], DATA)
    three = daemons.connect()
    one.close()
    one.close()
    with oc.open_array(url) as C:
        assert C.path.root is (three / "").root
    # A pool that was not closed disappears with its last reference.
    four = daemons.connect()
    del four
    with oc.open_array(url) as C:
        assert C.path.root is (three / "").root
    three.close()
    with pytest.raises(InvalidError, match="is not open in this process"):
        oc.open_array(url)


def test_one_pool_at_two_addresses_is_one(tmp_path: Path) -> None:
    key = tmp_path / "key"
    with_tcp = OwnDaemons(tmp_path, [tmp_path / "a"])
    with_tcp.stop()
    both = f'["unix:{tmp_path}/0", "tcp:127.0.0.1:0"]'
    manager = daemon(tmp_path, key, "manager", "a", listen=both)
    io = daemon(tmp_path, key, "io", "a", manager=f'"{manager.addresses[0]}"')
    urls = [each.replace("unix:", "outcore:") for each in manager.addresses]
    urls[1] = urls[1].replace("tcp:", "outcore://")
    try:
        with oc.connect(urls[0], key=key) as one, oc.connect(urls[1], key=key) as two:
            oc.from_array(DATA, one / "A", progress=False).close()
            with pytest.raises(InvalidError, match="onto itself"):
                oc.from_array(one / "A", two / "A", if_exists="overwrite", progress=False)
            with one.open("d/f", "w") as file:
                file.write(b"content")
            for old, new in ((one / "d/f", two / "d/f"), (two / "d", one / "d/e")):
                with pytest.raises(InvalidError, match="into itself"):
                    move_files(old, new, if_exists="overwrite", progress=False)
            assert (two / "d/f").read_bytes() == b"content"
            with oc.open_array(two / "A") as A:
                np.testing.assert_array_equal(A[...], DATA)
            # The servers may hold two copies of one pool, so outcore renames nothing between them.
            assert not on_one_disk(one / "d", two / "d")
            with pytest.raises(InvalidError, match="another pool"):
                one.rm(two / "d/f")
    finally:
        io.stop()
        manager.stop()
