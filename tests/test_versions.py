"""One version everywhere: the package, the crates, the pages and the command line."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from command_line import outcore

import outcore as oc

ROOT = Path(__file__).parent.parent
VERSION = oc.__version__


def toml(name: str) -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / name).read_text())


def test_the_package_and_its_metadata_agree() -> None:
    assert toml("pyproject.toml")["project"]["version"] == VERSION
    assert metadata.version("outcore") == VERSION
    assert outcore("--version").stdout == f"outcore, version {VERSION}\n"


def test_the_crates_agree() -> None:
    workspace = toml("Cargo.toml")["workspace"]
    assert isinstance(workspace["package"], dict)
    assert workspace["package"]["version"] == VERSION
    manifests = [path.read_text() for path in ROOT.glob("crates/*/Cargo.toml")]
    assert manifests
    assert [text for text in manifests if "\nversion.workspace = true\n" not in text] == []
    locked = re.findall(
        r'name = "(outcore[\w-]*)"\nversion = "(.+)"', (ROOT / "Cargo.lock").read_text()
    )
    assert len(locked) == len(manifests)
    assert {version for _, version in locked} == {VERSION}


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("README.md", r"^outcore is version (\d+\.\d+)\b"),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## (\d\S+) - "),
    ],
)
def test_pages_agree(page: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / page).read_text(), re.MULTILINE)
    assert found
    assert found[1] in (VERSION, VERSION.rpartition(".")[0])
