"""Searches of pools, with metadata in PostgreSQL and in SQLite, against a plain loop."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postgres_server import PostgresServer, postgres
from test_postgres import connected, serve

import outcore as oc
from outcore.pool.fsck import fsck

__all__ = ["postgres"]  # a fixture

COUNT = 1500
"""Number of directories: some queries have several pages of hits."""

QUERIES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "attr.level >= 0": lambda _: True,
    "attr.level = 7": lambda each: each["level"] == 7,
    "attr.level > 2.5 and attr.level <= 40": lambda each: 2.5 < each["level"] <= 40,
    "attr.level != 7": lambda each: each["level"] != 7,
    'attr.run = "a%_b"': lambda each: each["run"] == "a%_b",
    'attr.run ~ "a*b"': lambda each: each["run"][0] == "a" and each["run"][-1] == "b",
    'attr.run ~ "?é"': lambda each: len(each["run"]) == 2 and each["run"][1] == "é",
    'attr.run < "b"': lambda each: each["run"] < "b",
    'name ~ "d???1" and attr.level < 10': lambda each: (
        each["name"][-1] == "1" and each["level"] < 10
    ),
    'attr.run = "\'; DROP TABLE outcore.entries; --"': lambda each: each["run"].startswith("'"),
    'attr.level = 1 or (attr.run = "b" and attr.level > 90)': lambda each: (
        each["level"] == 1 or (each["run"] == "b" and each["level"] > 90)
    ),
    'not attr.run ~ "a*" and mtime > "2020-01-01"': lambda each: each["run"][0] != "a",
    'mtime < "2020-01-01"': lambda _: False,
    "attr.nothing = 1": lambda _: False,
}

RUNS = ("a%_b", "aXb", "b", "xé", "é", "'; DROP TABLE outcore.entries; --", "a\\b")


def fill(pool: oc.Pool) -> list[dict[str, Any]]:
    draw, made = random.Random(4), []
    for number in range(COUNT):
        parent = "p" if number % 2 else "q"
        each = {"name": f"d{number:04}", "level": draw.randint(0, 99), "run": draw.choice(RUNS)}
        each["path"] = f"{parent}/{each['name']}"
        pool.core.make_directory(each["path"])
        pool.setxattr(each["path"], "level", str(each["level"]).encode())
        pool.setxattr(each["path"], "run", each["run"].encode())
        made.append(each)
    return made


def check(pool: oc.Pool, made: list[dict[str, Any]]) -> None:
    for query, holds in QUERIES.items():
        expected = sorted(each["path"] for each in made if holds(each))
        found = [each.path.inside for each in pool.find("/", f'kind = "directory" and ({query})')]
        assert [path for path in found if "/" in path] == expected, query


def test_searches_find_what_a_loop_finds(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database()
    manager = serve(tmp_path, url)
    try:
        with connected(tmp_path) as pool:
            made = fill(pool)
            check(pool, made)
            # A change is found by the next search.
            pool.setxattr("q/d0000", "level", b"1000")
            made[0]["level"] = 1000
            pool.rm("p/d0001", recursive=True)
            check(pool, [each for each in made if each["name"] != "d0001"])
            # The index is lost, and fsck rebuilds it.
            postgres.sql(url, "DELETE FROM outcore.entries WHERE substr(key, 1, 1) IN ('y', 'w')")
            assert pool.find("/", "attr.level = 1000") == []
            assert {finding.kind for finding in fsck(pool).findings} == {"old index"}
            assert fsck(pool, repair=True).is_well
            check(pool, [each for each in made if each["name"] != "d0001"])
    finally:
        manager.stop()


def test_the_queries_find_the_same_in_sqlite(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        check(pool, fill(pool))
