"""Damage in a pool's metadata store: an error names the record, and no walk is endless."""

import contextlib
import struct
from pathlib import Path

import pytest
from metadata_store import opened, put, records

import outcore as oc
from outcore.errors import CorruptError, OutcoreError
from outcore.pool.fsck import fsck


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Return the directory of a pool with some files and directories."""
    directories = [tmp_path / "a"]
    with oc.Pool.embedded(directories) as pool:
        for name in ("d/e/f", "d/g", "h"):
            (pool / name).write_bytes(name.encode())
    return directories


def walk(pool: oc.Pool, path: str = "") -> list[str]:
    """List everything below a directory."""
    found = []
    for name in pool.ls(path):
        below = f"{path}/{name}".lstrip("/")
        found += [below, *(walk(pool, below) if (pool / below).is_dir() else [])]
    return found


def test_each_record_with_a_flipped_bit_is_named(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        names = walk(pool)
    with opened(places[0]) as store:
        every = records(store)
    # The manager reads records of finished requests only when a client repeats a request.
    tree = [(key, value) for key, value in every if key[:1] in b"inx"]
    assert len(tree) > 8
    for number, (key, value) in enumerate(tree):
        bad = bytearray(value)
        bad[number * 7 % len(bad)] ^= 1 << number % 8
        with opened(places[0]) as store:
            store.execute("UPDATE entries SET value = ? WHERE key = ?", (bytes(bad), key))
        with oc.Pool.embedded(places) as pool:
            with pytest.raises(CorruptError, match="it is damaged; restore the store") as error:
                fsck(pool, patience_s=0)
            assert f"\\x{key[8]:02x}" in str(error.value) or chr(key[8]) in str(error.value)
            with contextlib.suppress(CorruptError):
                assert walk(pool) == names
        with opened(places[0]) as store:
            store.execute("UPDATE entries SET value = ? WHERE key = ?", (value, key))
    with oc.Pool.embedded(places) as pool:
        assert fsck(pool, patience_s=0).findings == ()


def test_directories_within_themselves_are_findings(places: list[Path]) -> None:
    with opened(places[0]) as store:
        handles = {
            key[9:].decode(): struct.unpack("<Q", value[1:])[0]
            for key, value in records(store)
            if key[:1] == b"n"
        }
        for inner, outer in (("d", "e"), ("e", "e")):
            key = b"i" + struct.pack(">Q", handles[inner])
            (value,) = store.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
            changed = value[:9] + struct.pack("<Q", handles[outer]) + value[17:]
            put(store, key, changed, 1)
    with oc.Pool.embedded(places) as pool:
        found = fsck(pool, patience_s=0).findings
        broken = [each for each in found if each.kind == "broken record"]
        assert f"{handles['d']:016x}" in [each.handle for each in broken]
        assert any("no way leads from it to the root" in each.text for each in broken)


def test_a_store_of_the_format_before_is_read_and_gets_checksums(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        names = walk(pool)
    with opened(places[0]) as store:
        before = records(store)
        store.execute("ALTER TABLE entries DROP COLUMN sum")
        store.execute("PRAGMA user_version = 1")
    with oc.Pool.embedded(places) as pool:
        assert walk(pool) == names
        assert fsck(pool, patience_s=0).findings == ()
    with opened(places[0]) as store:
        assert store.execute("PRAGMA user_version").fetchone() == (3,)
        tree = [each for each in records(store) if each[0][:1] in b"in"]
        assert tree == [each for each in before if each[0][:1] in b"in"]
        for key, value, version, kept in store.execute("SELECT * FROM entries").fetchall():
            put(store, key, value, version)
            found = store.execute("SELECT sum FROM entries WHERE key = ?", (key,)).fetchone()
            assert found == (kept,)


def test_a_store_without_the_number_of_its_pool_makes_no_new_pool(places: list[Path]) -> None:
    with opened(places[0]) as store:
        store.execute("DELETE FROM entries WHERE key = ?", (b"p",))
    with pytest.raises(CorruptError, match="need the number of the pool"):
        oc.Pool.embedded(places)
    with opened(places[0]) as store:
        assert store.execute("SELECT * FROM entries WHERE key = ?", (b"p",)).fetchall() == []


def test_pages_that_do_not_fit_together_are_found(places: list[Path]) -> None:
    file = places[0] / "manager" / "metadata.sqlite"
    with oc.Pool.embedded(places) as pool:
        pool.mkdir("many")
        for number in range(300):
            pool.mkdir(f"many/{number}")
    whole, page = file.read_bytes(), 2048
    found = 0
    for number in range(2, len(whole) // page):
        # Decrement the number of cells in the page header: one record disappears, all others stay.
        at = number * page + 4
        file.write_bytes(whole[:at] + bytes([(whole[at] - 1) % 256]) + whole[at + 1 :])
        with pytest.raises(OutcoreError), oc.Pool.embedded(places) as pool:
            fsck(pool, patience_s=0)
        found += 1
    assert found > 5
