"""CONTRIBUTING.md against the code: the files, make targets and crates that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOTS = (ROOT, ROOT / "python/outcore")
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_files_of_the_page_exist() -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:md|toml|py|rs))`", PAGE)
    # `NAME` and `X` stand for names that a contributor chooses.
    named = [name for name in named if not re.search(r"NAME|_X\b", name)]
    gone = [name for name in named if not any((root / name).exists() for root in ROOTS)]
    assert len(named) > 30
    assert gone == []


def test_make_targets_of_the_page_exist() -> None:
    named = {*re.findall(r"\bmake ([a-z][a-z-]*)", PAGE)}
    defined = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
    assert len(named) > 5
    assert named <= defined


def test_crates_of_the_page_exist() -> None:
    named = {*re.findall(r"cargo \w+ [^\n`]*-p ([\w-]+)", PAGE)}
    manifests = [path.read_text() for path in ROOT.glob("crates/*/Cargo.toml")]
    names = {re.findall(r'^name = "(.+)"', text, re.MULTILINE)[0] for text in manifests}
    assert named
    assert named <= names
