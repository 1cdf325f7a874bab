"""The benchmark of Panda's figures runs, at sizes too small to measure speed."""

import itertools
import json
from pathlib import Path

import pytest
from benchmarks.page_tables import put_into
from benchmarks.panda_page import Point, tables
from test_benchmarks import run


@pytest.mark.exhaustive(keep=0)
def test_every_combination_is_measured_and_drawn(tmp_path: Path) -> None:
    done = run(tmp_path, "paper_panda")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "paper_panda.json").read_text())
    if found["figures"][0]["skipped"]:
        pytest.skip(found["figures"][0]["skipped"])
    points = [Point(**point) for point in found["details"]["points"]]
    assert {(p.call, p.order, p.has_disks, p.servers, p.mib) for p in points} == set(
        itertools.product(
            ("write", "read"), ("natural", "traditional"), (True, False), (2,), (1, 2)
        )
    )
    assert all(share > 0 for point in points for share in point.shares)
    assert len(found["figures"]) == 8
    assert (tmp_path / "panda.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} <= {
        "paper_panda.json", "panda.png", "cache",
    }  # fmt: skip


def test_the_tables_of_the_page(tmp_path: Path) -> None:
    points = [
        Point(call, "natural", has_disks, servers, mib, [mib * 1e6, mib * 3e6], 1e9)
        for call in ("write", "read")
        for has_disks in (True, False)
        for servers in (4, 1)
        for mib in (512, 16)
    ]
    with_disks, without = tables(points).split("\n\nWithout disks:\n\n")
    assert with_disks.splitlines() == [
        "With disks:",
        "",
        "| call | order | servers | 16 MiB | 512 MiB |",
        "| --- | --- | --- | --- | --- |",
        "| `read_all` | natural | 1 | 32 (3%) | 1024 (102%) |",
        "| `read_all` | natural | 4 | 32 (3%) | 1024 (102%) |",
        "| `write_all` | natural | 1 | 32 (3%) | 1024 (102%) |",
        "| `write_all` | natural | 4 | 32 (3%) | 1024 (102%) |",
    ]
    assert len(without.splitlines()) == 6
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- end of tables -->\nafter\n")
    for _ in range(2):
        put_into(page, tables(points))
        assert page.read_text() == (
            f"before\n<!-- tables -->\n\n{tables(points)}\n\n<!-- end of tables -->\nafter\n"
        )
    page.write_text("no place")
    with pytest.raises(ValueError, match="no place for tables"):
        put_into(page, tables(points))
