"""The public names: `dir` lists them only, each is documented, and pages use no other module."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import outcore as oc

ROOT = Path(__file__).parent.parent
INDEX = (ROOT / "docs/index.md").read_text()
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "decisions"),
    *ROOT.glob("examples/*.py"),
]

MODULES = set(re.findall(r"^\| `(outcore(?:\.\w+)*)` \|", INDEX, re.MULTILINE))
"""The modules that docs/index.md calls public."""

NAMES = [
    f"{module}.{name}"
    for module in ("outcore", "outcore.linalg", "outcore.errors")
    for name in importlib.import_module(module).__all__
]

CHECKS = re.compile(r"<!-- [^\n]* by internal modules -->\n```python\n.*?\n```", re.DOTALL)
"""Code that checks a table of a page, and is no example for users."""

FILES = (
    "generation|fill|copy|steps|state|reflections|solving|checksums|made|condition|group|pc"
    "|description"
)
"""Endings of names of files and attributes that docs/format.md or docs/how-to/c.md describes."""


def test_dir_lists_public_names_only() -> None:
    assert {*dir(oc)} == {*oc.__all__, "__version__"}
    assert {*dir(oc.linalg)} == {*oc.linalg.__all__}
    assert {*dir(oc.errors)} == {*oc.errors.__all__}


def test_every_error_is_public() -> None:
    defined = {
        name
        for name, found in vars(oc.errors).items()
        if inspect.isclass(found) and found.__module__ == "outcore.errors"
    }
    assert defined <= {*oc.errors.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name: str) -> None:
    module, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(module), last)
    doc = inspect.getdoc(found)
    assert doc
    # A dataclass without a docstring gets its signature instead.
    assert not doc.startswith(f"{last}(")
    assert re.search(rf"\b{last}\b", INDEX) or module == "outcore.errors"


def is_public(name: str) -> bool:
    module, _, last = name.rpartition(".")
    if name in MODULES:
        return True
    return module in MODULES and last in dir(importlib.import_module(module))


def test_pages_use_public_modules_only() -> None:
    assert len(MODULES) > 3
    wrong = []
    for page in PAGES:
        text = CHECKS.sub("", page.read_text())
        used = re.findall(r"(?:from|import) (outcore[.\w]*)", text)
        used += re.findall(r"`(outcore\.\w[\w.]*)[`(]", text)
        named = [name for name in used if not re.match(rf"outcore\.(?:{FILES})\b", name)]
        wrong += [f"{page.relative_to(ROOT)}: {name}" for name in named if not is_public(name)]
    assert wrong == []
