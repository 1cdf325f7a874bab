"""Each test that docs/semantics-pools.md names for a promise exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/semantics-pools.md").read_text()
HEAD = "| promise | shown by |"

RUST_TEST = re.compile(r"#\[test\]\n(?:\s*#\[.*\]\n)*\s*fn (\w+)\(")
PYTHON_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)

# Planted bugs, as the page calls them, and the tests in which the simulation must find them.
PLANTED = {
    "skips syncs": "a_skipped_sync_is_found",
    "ignores restarts": "a_restart_that_is_not_looked_at_is_found",
    "executes twice": "a_request_done_twice_is_found",
    "ignores checksums": "a_skipped_checksum_is_found",
    "reuses handles": "a_handle_used_again_is_found",
    "forgets removals": "a_removal_that_is_forgotten_is_found",
    "does not renew": "grants_that_are_not_renewed_are_found",
    "servers that trust their own clocks": "servers_that_trust_their_own_clocks_are_found",
    "clients that do not renew": "grants_that_are_not_renewed_are_found",
    "answer before the sync": "an_answer_before_it_is_durable_is_found",
    "trusts shares too early": "shares_that_are_trusted_before_the_end_are_found",
    "wait for ever": "servers_that_wait_for_the_dead_are_found",
    "miss a closed connection": "connections_that_do_not_end_are_found",
    "ignores generations": "generations_that_are_not_compared_are_found",
    "takes lengths from the disk": "lengths_of_the_disk_are_found",
    "clients that abandon removals": "removals_that_nobody_goes_on_with_are_found",
}


def promises() -> Iterator[tuple[str, str]]:
    for table in PAGE.split(HEAD)[1:]:
        for row in table.split("\n\n")[0].splitlines()[2:]:
            promise, shown_by = row.strip().strip("|").rsplit(" | ", 1)
            yield promise.strip(), shown_by.strip()


def named_below(path: Path) -> set[str]:
    files = [path] if path.is_file() else [*path.rglob("*.rs"), *path.rglob("*.py")]
    found: set[str] = set()
    for file in files:
        tests = RUST_TEST if file.suffix == ".rs" else PYTHON_TEST
        found |= set(tests.findall(file.read_text()))
    return found


ALL = named_below(ROOT / "crates") | named_below(ROOT / "tests")
PROMISES = list(promises())


def test_there_are_promises() -> None:
    assert len(PROMISES) >= 36
    assert PAGE.count(HEAD) == 8


@pytest.mark.parametrize(("promise", "shown_by"), PROMISES, ids=[each[:50] for each, _ in PROMISES])
def test_what_shows_it_is_there(promise: str, shown_by: str) -> None:
    names = re.findall(r"`([^`]+)`", shown_by)
    assert names or shown_by == "the same", promise
    for name in names:
        if "/" in name:
            assert (ROOT / name).exists(), name
            assert named_below(ROOT / name), f"{name} has no tests"
        else:
            assert name in ALL, name
    bugs = [PLANTED[bug] for bug in PLANTED if bug in shown_by]
    assert bugs or "planted" not in shown_by, f"no test plants that bug: {shown_by}"
    assert ALL.issuperset(bugs)


def test_planted_bugs_are_those_of_the_page() -> None:
    assert [bug for bug in PLANTED if bug not in PAGE] == []
