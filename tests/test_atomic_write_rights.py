"""Atomic collectives: the new files of an array have the rights of the old ones."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import Served, serve
from served_pools import in_memory

import outcore as oc
from outcore.array_files import atomic_write
from outcore.errors import DeniedError
from outcore.storage.volumes import place

ADA, BOB, CID, LAB = 1001, 1002, 1003, 500


@pytest.fixture
def served() -> Iterator[Served]:
    with in_memory() as directory, serve(directory) as found:
        yield found


@pytest.fixture
def shared(served: Served) -> Iterator[dict[str, oc.Pool]]:
    """Connect to one pool: three users of one lab, and the owner of the pool's key."""
    before = os.umask(0o022)
    keys = {name: served.key_of(name, uid, uid, LAB)
            for name, uid in (("ada", ADA), ("bob", BOB), ("cid", CID))}  # fmt: skip
    try:
        with (
            oc.connect(served.url, key=served.key) as root,
            oc.connect(served.url, key=keys["ada"]) as ada,
            oc.connect(served.url, key=keys["bob"]) as bob,
            oc.connect(served.url, key=keys["cid"]) as cid,
        ):
            yield {"root": root, "ada": ada, "bob": bob, "cid": cid}
    finally:
        os.umask(before)


def below(pool: oc.Pool, name: str) -> Iterator[str]:
    """Yield a name and all names below it, sorted."""
    yield name
    if pool.stat(name).is_directory:
        for path, _ in pool.scandir(name):
            yield from below(pool, path.inside)


def rights(pool: oc.Pool, name: str = "u/c") -> dict[str, Any]:
    """Return all that a pool stores with each name, except the content."""
    found = {}
    for each in below(pool, name):
        status = pool.stat(each)
        values = {name: pool.getxattr(each, name) for name in pool.listxattr(each)}
        found[each] = (
            status.owner, status.group, status.mode, values, len(status.servers),
            status.stripe_unit_bytes,
        )  # fmt: skip
    return found


def share(pools: dict[str, oc.Pool], steps: int, *, mode: int = 0o660) -> None:
    """Let ada create an array that her lab may write; `mode` is that of its files."""
    ada, root = pools["ada"], pools["root"]
    root.mkdir("lab")
    root.chmod("", 0o777)
    with oc.create_array(ada / "u", (0 if steps else 6, 5), growing=bool(steps)) as u:
        if steps:
            u.append(np.zeros((steps, 5)))
    for number, name in enumerate(below(ada, "u")):
        ada.chown(name, group=LAB)
        if ada.stat(name).is_directory:
            ada.chmod(name, mode | (mode & 0o444) >> 2)
        else:
            ada.chmod(name, mode)
            ada.setxattr(name, "number", b"%d" % number)
    ada.setxattr("u/c", "note", b"of the directory")


def write(pool: oc.Pool, value: float) -> None:
    with oc.open_array(pool / "u", "r+") as u:
        new = np.full(u.shape, float(value))
        u.write_all(new, "*,*", atomic=True)


def element(pool: oc.Pool) -> float:
    with oc.open_array(pool / "u") as u:
        return float(u[0, 0])


@pytest.mark.parametrize("steps", [0, 3])
def test_a_group_goes_on_writing(shared: dict[str, oc.Pool], steps: int) -> None:
    share(shared, steps)
    before = rights(shared["root"])
    for value, name in enumerate(("bob", "cid", "bob", "ada")):
        write(shared[name], value)
        assert element(shared["ada"]) == value
        after = rights(shared["root"])
        assert list(after) == list(before)
        replaced = {each for each in after if after[each] != before[each]}
        owners = {after[each][0] for each in replaced}
        assert owners <= {{"bob": BOB, "cid": CID, "ada": ADA}[name]}
        for each, kept in before.items():
            assert after[each][1:] == kept[1:], each
    # A write with the pool's key keeps the owners.
    before = rights(shared["root"])
    write(shared["root"], 9)
    assert element(shared["cid"]) == 9
    assert rights(shared["root"]) == before


def test_the_layout_of_the_files_and_of_the_directory_stay(shared: dict[str, oc.Pool]) -> None:
    ada, root = shared["ada"], shared["root"]
    root.chmod("", 0o777)
    ada.mkdir("one")
    ada.set_layout("one", {"stripe_count": 1, "cb_nodes": 3})
    with oc.create_array(ada / "one/u", (0, 5), growing=True) as u:
        u.append(np.zeros((3, 5)))
    ada.mv("one/u", "u")
    ada.set_layout("u/c", {"striping_unit": "192 KiB"})
    before = rights(root)
    assert {kept[4] for name, kept in before.items() if not root.stat(name).is_directory} == {1}
    write(ada, 1)
    assert rights(root) == before
    with ada.open("u/c/more", "x"):
        pass
    assert ada.stat("u/c/more").stripe_unit_bytes == 192 << 10


def test_who_cannot_keep_the_group_is_refused_before_any_work(shared: dict[str, oc.Pool]) -> None:
    share(shared, 3, mode=0o666)
    root = shared["root"]
    for name in below(root, "u"):
        root.chown(name, group=700)
    write(shared["bob"], 1)
    for name in ("u/c", *(path.inside for path in (root / "u/c").iterdir())):
        found = root.stat(name)
        assert found.owner == BOB
        assert found.mode & 0o666 == 0o666, "the group matters to nobody"
    for name in below(root, "u/c"):
        root.chown(name, ADA, 700)
        if not root.stat(name).is_directory:
            root.chmod(name, 0o646)
    before = rights(root)
    with pytest.raises(DeniedError, match="group 700"):
        write(shared["bob"], 2)
    assert rights(root) == before
    assert not atomic_write.left(place(root / "u"))
    assert element(root) == 1


def test_nothing_of_a_private_array_can_be_read_meanwhile(
    shared: dict[str, oc.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    share(shared, 3, mode=0o600)
    shared["ada"].chmod("u", 0o755)
    take_place, seen = atomic_write.take_place, []

    def look(fresh: Any, *rest: Any) -> None:
        for name in below(shared["root"], fresh.inside("c")):
            seen.append(shared["root"].stat(name).mode & 0o077)
        take_place(fresh, *rest)

    monkeypatch.setattr(atomic_write, "take_place", look)
    write(shared["ada"], 1)
    assert seen
    assert not any(seen)
