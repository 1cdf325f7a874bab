"""Scrubbing a pool: it finds all of the damage made by hand, and reports nothing more."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from own_daemons import OwnDaemons
from pool_files import data_files, flip, sums_of

import outcore as oc
from outcore.cli import main
from outcore.errors import CorruptError, InvalidError
from outcore.pool import scrub as pool_scrub
from outcore.pool.scrub import scrub

BLOCK = 64 << 10


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Return the directories of a pool of two servers: a striped, an unstriped and a small file."""
    places = [tmp_path / "a", tmp_path / "b"]
    noise = np.random.default_rng(0).bytes(9 * BLOCK + 1234)
    with oc.Pool.embedded(places) as pool:
        for name, nbytes, hints in (
            ("d/striped", 9 * BLOCK + 1234, {"stripe_unit_bytes": BLOCK}),
            ("d/single", 3 * BLOCK, {"stripe_count": 1, "base": 1}),
            ("small", 7, {"stripe_count": 1, "base": 0}),
        ):
            with pool.open(name, "w", hints=hints) as file:
                file.write(noise[:nbytes])
    return places


def found(report: pool_scrub.ScrubReport) -> set[tuple[int, str | None, int, int | None]]:
    return {(d.server, d.path, d.offset, d.file_offset) for d in report.damage}


def test_flipped_bits_are_told_exactly(directories: list[Path]) -> None:
    with oc.Pool.embedded(directories) as pool:
        report = scrub(pool, progress=False)
        assert (report.damage, report.servers, report.files) == ((), 2, 4)
        assert report.nbytes == 9 * BLOCK + 1234 + 3 * BLOCK + 7
    striped, small = data_files(directories[0])
    _, single = data_files(directories[1])
    assert small.stat().st_size == 7
    assert single.stat().st_size == 3 * BLOCK
    flip(striped, 2 * BLOCK + 17)
    flip(small, 6)
    # Change the checksum of block 1, so that the data no longer match it.
    flip(sums_of(single), 4096 + 4 + 2)
    with oc.Pool.embedded(directories) as pool:
        report = scrub(pool, progress=False)
        assert found(report) == {
            (0, "d/striped", 2 * BLOCK, 4 * BLOCK),
            (0, "small", 0, 0),
            (1, "d/single", BLOCK, BLOCK),
        }
        assert {d.handle for d in report.damage} == {striped.name, small.name, single.name}
        assert [server.damaged_blocks for server in pool.servers()] == [2, 1]
        for damage in report.damage:
            assert damage.path is not None
            assert damage.file_offset is not None
            with pool.open(damage.path) as file:
                file.seek(damage.file_offset)
                with pytest.raises(CorruptError):
                    file.read(1)


def test_nothing_is_found_while_others_write(directories: list[Path], all_lines: bool) -> None:
    with oc.Pool.embedded(directories) as pool:
        stop = threading.Event()
        errors: list[BaseException] = []

        def write(seed: int) -> None:
            random = np.random.default_rng(seed)
            try:
                while not stop.is_set():
                    with pool.open("d/striped", "r+") as file:
                        file.seek(int(random.integers(0, 9 * BLOCK)))
                        file.write(random.bytes(int(random.integers(1, 3 * BLOCK))))
                    with pool.open(f"more{seed}", "w") as file:
                        file.write(random.bytes(BLOCK + 5))
                    pool.rm(f"more{seed}")
            except BaseException as error:
                errors.append(error)

        writers = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
        for writer in writers:
            writer.start()
        try:
            reports = [scrub(pool, progress=False) for _ in range(20 if all_lines else 7)]
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert not errors
        assert all(report.damage == () for report in reports)
        assert scrub(pool, progress=False).damage == ()


class FakeTime:
    """A clock that advances only while the caller waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> None:
        self.now += seconds


class FakeServer:
    """A server with this many bytes, which compares them in no time."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self.pieces: list[int] = []

    def scrub(self, server: int, handle: int, offset: int, most: int) -> tuple[Any, ...]:
        piece = min(most, self.left)
        self.left -= piece
        self.pieces.append(piece)
        return ((5, offset + piece) if self.left else None), 0, piece, []


@pytest.mark.parametrize(
    ("rate", "piece"), [(50_000_000, 6_250_000), (1000, BLOCK), (10**9, 16 << 20)]
)
def test_the_rate_is_held_by_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch, rate: int, piece: int
) -> None:
    clock, server = FakeTime(), FakeServer(100_000_000)
    monkeypatch.setattr(pool_scrub, "time", clock)
    pool_scrub._Walk(server, 0, rate, clock).run()  # type: ignore[arg-type]
    assert clock.now == pytest.approx(100_000_000 / rate)
    assert max(server.pieces) == piece


def test_who_stops_it_waits_for_a_piece_and_no_more(directories: list[Path]) -> None:
    def stop(*_: float) -> None:
        raise KeyboardInterrupt

    with oc.Pool.embedded(directories) as pool:
        with pytest.raises(KeyboardInterrupt):
            # At this rate the whole scrub would take years.
            scrub(pool, rate=1, progress=stop)
        assert not [each for each in threading.enumerate() if each.name.startswith("outcore-scrub")]
        assert scrub(pool, progress=False).damage == ()


def test_the_command_line_says_what_it_found(directories: list[Path]) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(main, ["pool", "scrub", *map(str, arguments)])

    result = run(*directories, "--rate", "1GB/s")
    assert result.exit_code == 0, result.output
    assert "nothing is damaged" in result.stdout
    flip(data_files(directories[1])[1], 1)
    result = run(*directories, "--json")
    assert result.exit_code == 1
    damage = json.loads(result.stdout)["damage"]
    assert [(d["server"], d["path"], d["offset"]) for d in damage] == [(1, "d/single", 0)]
    result = run(*directories)
    assert result.exit_code == 1
    assert "server 1, d/single, byte 0 of its data file" in result.stdout
    for bad, said in (
        ([directories[0] / "none"], "is no directory of a pool"),
        ([directories[1], directories[0]], "name the pool's first directory first"),
        (["outcore://h:1", "x"], "need one address"),
        ([*directories, "--rate", "fast"], "as a size"),
    ):
        result = run(*bad)
        assert result.exit_code == 1
        assert said in result.stderr


def test_a_served_pool_is_scrubbed_by_its_address(tmp_path: Path, directories: list[Path]) -> None:
    daemons = OwnDaemons(tmp_path, directories)
    try:
        flip(data_files(directories[0])[1], 3)
        arguments = ["pool", "scrub", daemons.url, "--key", str(daemons.key)]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        assert "server 0, small, byte 0 of its data file" in result.stdout
        with daemons.connect() as pool:
            pool.rm("small")
        result = CliRunner().invoke(main, [*arguments, "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["files"] == 3
    finally:
        daemons.stop()


def test_an_empty_pool_is_well(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        calls: list[tuple[float, float]] = []
        report = scrub(pool, progress=lambda *told: calls.append(told))
        assert (report.files, report.nbytes, report.damage) == (0, 0, ())
        assert calls[-1] == (1.0, 0.0)
        with pytest.raises(InvalidError):
            scrub(pool, rate="0", progress=False)
