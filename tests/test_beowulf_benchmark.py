"""The benchmark of the Beowulf runs, at sizes too small to measure speed."""

import itertools
import json
from pathlib import Path

import pytest
from benchmarks.beowulf.page import conclusion, tables
from benchmarks.beowulf.points import PAYLOAD, Copies, Tokens
from benchmarks.beowulf.predictions import Check, figure
from test_benchmarks import run


@pytest.mark.exhaustive(keep=0)
def test_both_experiments_and_the_predictions(tmp_path: Path) -> None:
    done = run(tmp_path, "beowulf")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "beowulf.json").read_text())
    if found["figures"][0]["skipped"]:
        pytest.skip(found["figures"][0]["skipped"])
    tokens = [Tokens(**point) for point in found["details"]["tokens"]]
    copies = [Copies(**point) for point in found["details"]["copies"]]
    assert {(p.channels, p.pairs, p.nbytes) for p in tokens} == set(
        itertools.product((1, 2), (1, 2), (256, 65536))
    )
    assert {(p.network, p.channels, p.remote) for p in copies} == set(
        itertools.product(("slow", "fast"), (1, 2), (0, 4))
    )
    assert all(point.bytes_s > 0 for point in (*tokens, *copies))
    checks = [Check(**check) for check in found["details"]["checks"]]
    assert len(checks) == 8
    assert all(check.measured > 0 for check in checks)
    assert (tmp_path / "beowulf.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} <= {"beowulf.json", "beowulf.png", "cache"}


def copies(network: str, channels: int, remote: int, bytes_s: float, channel: float) -> Copies:
    return Copies(network, channels, 16, remote, bytes_s, 2e6, channel)


def test_the_model_of_copies_and_the_ratio() -> None:
    slow = [copies("slow", 1, remote, 32e6, 8e6) for remote in (0, 8, 16)]
    assert [point.ratio for point in slow] == [0.25] * 3
    assert [point.model_bytes_s for point in slow] == pytest.approx(
        [32e6, 8 * 2e6 + 8e6 * PAYLOAD, 8e6 * PAYLOAD]
    )
    fast = [copies("fast", 2, remote, 32e6, 32e6) for remote in (0, 8, 16)]
    assert [point.model_bytes_s for point in fast] == [32e6] * 3


def test_the_tables_of_the_page() -> None:
    points = [
        copies(network, channels, remote, total, channel)
        for network, channel, totals in (("slow", 8e6, (32e6, 8e6)), ("fast", 32e6, (32e6, 31e6)))
        for channels in (1, 2)
        for remote, total in zip((0, 16), totals, strict=True)
    ]
    tokens = [Tokens(channels, 1, 256, channels * 1e6) for channels in (1, 2)]
    check = Check("3 hosts, another channel, remote copies", 2.1, 10e6, 20e6)
    text = tables(tokens, points, [check])
    assert "| one channel | 1 | 1.0 |\n| two channels | 1 | 2.0 |" in text
    assert "| slow, one channel | 0.25 | 32.0 (32.0) | 8.0 (7.7) |" in text
    assert "| fast, two channels | 2 | 32.0 (32.0) | 31.0 (32.0) |" in text
    assert "| 3 hosts, another channel, remote copies | 2.10 | 2.00 | 5% |" in text
    rows = conclusion(points).splitlines()[2:]
    assert rows == ["| 0.25 | 25% |", "| 0.5 | 25% |", "| 1 | 97% |", "| 2 | 97% |"]
    assert figure(check).median == pytest.approx(0.05)
