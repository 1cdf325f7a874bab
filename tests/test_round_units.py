"""Files whose first stripe units alternate between servers, and whose rest is on the last one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pool_files import flip, sums_of, with_handle
from served_pools import in_memory, served_url

import outcore as oc
from outcore.cli import main
from outcore.errors import CorruptError, InvalidError
from outcore.files.copy import copy_files
from outcore.pool.fsck import fsck
from outcore.pool.scrub import scrub
from outcore.storage.whole_file import copy_whole

__all__ = ["served_url"]

SERVERS = 3
BLOCK = 64 << 10


@pytest.fixture
def places() -> Iterator[list[Path]]:
    with in_memory() as directory:
        yield [directory / str(number) for number in range(SERVERS)]


def hints_for(unit: int, units: int, **others: Any) -> dict[str, Any]:
    return {"stripe_unit_bytes": unit, "round_units": units, **others}


def noise(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def on_servers(pool: oc.Pool, places: list[Path], name: str) -> list[bytes]:
    handle = pool.core.handle(name)
    files = [with_handle(places[server], handle) for server in pool.stat(name).servers]
    return [file.read_bytes() if file.exists() else b"" for file in files]


def parts(content: bytes, unit: int, units: int, count: int = SERVERS) -> list[bytes]:
    """Return the content of each server's data file, by docs/format.md."""
    cut = [content[unit * n : unit * (n + 1)] for n in range(units)]
    found = [b"".join(cut[entry::count]) for entry in range(count)]
    found[-1] += content[unit * units :]
    return found


@pytest.mark.parametrize("units", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("unit", [1000, 4096])
def test_a_file_is_what_was_written_wherever_it_lies(
    places: list[Path], unit: int, units: int
) -> None:
    random = np.random.default_rng(units)
    model = bytearray()
    with oc.Pool.embedded(places) as pool:
        with pool.open("f", "w", hints=hints_for(unit, units)) as file:
            for step in range(60):
                if step % 7 == 6:
                    size = int(random.integers(0, 12 * unit))
                    file.truncate(size)
                    model[size:] = bytes(max(size - len(model), 0))
                else:
                    at, size = (int(n) for n in random.integers(0, 6 * unit, 2))
                    data = random.bytes(size)
                    file.write_at(at, data)
                    model.extend(bytes(max(at + size - len(model), 0)))
                    model[at : at + size] = data
                assert file.nbytes == len(model)
                first = int(random.integers(0, len(model) + 1))
                assert bytes(file.read_at(first, len(model) - first)) == model[first:]
            file.write_strided(3, 0, 5, 300, unit // 11, 2, data=(data := noise(1502)))
            model.extend(bytes(max(3 + 300 * (unit // 11) + 2 - len(model), 0)))
            for number in range(301):
                at, run = 3 + number * (unit // 11), data[5 * number : 5 * (number + 1)]
                model[at : at + len(run)] = run
            found = file.read_strided(3, 0, 5, 300, unit // 11, 2)
            assert bytes(found) == data
            assert bytes(file.read_at(0, len(model))) == model
        assert on_servers(pool, places, "f") == parts(bytes(model), unit, units)
        status = pool.stat("f")
        assert (status.stripe_unit_bytes, status.round_units) == (unit, units)
    # The manager stores the number.
    with oc.Pool.embedded(places) as pool:
        assert pool.stat("f").round_units == units
        assert pool.open("f").read() == model
        assert pool.ls() == ["f"]
        assert fsck(pool, patience_s=0).findings == ()
        assert scrub(pool, progress=False).damage == ()


def test_damage_is_told_by_the_byte_of_the_file(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        hints = hints_for(BLOCK, 4)
        with pool.open("f", "w", hints=hints) as file:
            file.write(noise(9 * BLOCK + 5))
        assert pool.stat("f").servers == (0, 1, 2)
        handle = pool.core.handle("f")
    # The servers hold units 0 and 3, unit 1, and unit 2 with the tail.
    flip(with_handle(places[0], handle), BLOCK)
    flip(with_handle(places[2], handle), 5 * BLOCK + 7)
    with oc.Pool.embedded(places) as pool:
        found = {(d.server, d.offset, d.file_offset) for d in scrub(pool, progress=False).damage}
        assert found == {(0, BLOCK, 3 * BLOCK), (2, 5 * BLOCK, 8 * BLOCK)}
        with pool.open("f") as file, pytest.raises(CorruptError, match=f"byte {8 * BLOCK} of"):
            file.read_at(8 * BLOCK + 1, 1)


def test_data_files_that_are_lost_or_too_long_are_found(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        for name in "ab":
            with pool.open(name, "w", hints=hints_for(1000, 2, base=0)) as file:
                file.write(noise(10_000))
                file.sync()
        handles = [pool.core.handle(name) for name in "ab"]
    lost, grown = with_handle(places[2], handles[0]), with_handle(places[0], handles[1])
    lost.unlink()
    sums_of(lost).unlink()
    # Extend the data file by a byte, to a length that no write leaves.
    grown.write_bytes(grown.read_bytes() + bytes(1))
    with oc.Pool.embedded(places) as pool:
        findings = {(f.kind, f.server, f.path) for f in fsck(pool, patience_s=0).findings}
        assert findings == {("missing data", 2, "a"), ("impossible length", 0, "b")}
        with pytest.raises(CorruptError, match="too long: need"):
            _ = pool.open("b").nbytes


def test_copies_keep_it(places: list[Path], tmp_path: Path) -> None:
    content = noise(10_000)
    with (
        oc.Pool.embedded(places) as pool,
        oc.Pool.embedded([tmp_path / "x", tmp_path / "y"]) as other,
    ):
        with pool.open("f", "w", hints=hints_for(1000, 2)) as file:
            file.write(content)
        for target, hints in (
            (pool / "g", None), (other / "g", None), (pool / "h", {"stripe_count": 2}),
            (pool / "i", {"striping_unit": 500}), (other / "plain", {"stripe_unit_bytes": 1000}),
        ):  # fmt: skip
            copy_files(pool / "f", target, hints=hints)
            assert target.open().read() == content
            kept = 2 if hints is None or "stripe_count" in hints else None
            assert target.stat().round_units == kept
        copy_whole(pool / "f", pool / "w")
        copy_whole(pool / "i", pool / "v")
        assert (pool.stat("w").round_units, pool.stat("v").round_units) == (2, None)
        assert on_servers(pool, places, "w") == parts(content, 1000, 2)


def test_hints_that_cannot_be_are_refused(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        for units in (0, -1, "many", 1 << 63):
            with pytest.raises(InvalidError, match="round_units"):
                pool.open("f", "w", hints={"round_units": units})
        with pytest.raises(InvalidError, match="need a file"):
            pool.set_layout("", {"round_units": 2})
        with pool.open("f", "w", hints={"round_units": "3"}) as file:
            file.write(b"x")
        assert pool.stat("f").round_units == 3


def test_on_the_command_line(served_url: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(noise(5000))
    name = f"{served_url}/f"
    options = ["--hint", "round_units=2", "--hint", "stripe_unit_bytes=1000"]
    assert CliRunner().invoke(main, ["cp", *options, str(tmp_path / "f"), name]).exit_code == 0
    text = CliRunner().invoke(main, ["stat", name]).output
    assert "round units  2, and the rest on the last server" in text
    answer = CliRunner().invoke(main, ["stat", "--json", name]).output
    assert json.loads(answer)["entries"][0]["round_units"] == 2
