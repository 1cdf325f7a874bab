"""docs/api against the code: each public name is listed, and its docstring has all sections."""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from test_public_names import MODULES

PAGES = Path(__file__).parent.parent / "docs/api"

DIRECTIVE = re.compile(r"^\.\. (?:current)?module:: (\S+)$|^\.\. auto\w+:: (\S+)$", re.MULTILINE)
SECTION = re.compile(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", re.MULTILINE)

NAMES = sorted(
    f"{module}.{name}"
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if not inspect.ismodule(getattr(importlib.import_module(module), name))
)


def listed() -> list[str]:
    """Return the full names that the pages list, in their order."""
    found = []
    for page in sorted(PAGES.glob("*.rst")):
        module = ""
        for begun, name in DIRECTIVE.findall(page.read_text()):
            module = begun or module
            if name:
                found.append(f"{module}.{name}")
    return found


def sections(found: Any) -> dict[str, str]:
    """Return the sections of a docstring by their titles."""
    parts = SECTION.split(inspect.getdoc(found) or "")
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(section: str) -> set[str]:
    """Return the names that the entries of a section describe."""
    entries = re.findall(r"^\S.*$", section, re.MULTILINE)
    return {name for entry in entries for name in re.findall(r"\w+", entry)}


def object_of(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def parameters(found: Callable[..., Any]) -> set[str]:
    return {*inspect.signature(found).parameters} - {"self"}


def test_the_pages_list_each_public_name_once() -> None:
    assert len(NAMES) > 100
    names = listed()
    assert len({*names}) == len(names)
    assert {*names} <= {*NAMES}
    # `OutcoreError` has a second name, in `outcore.errors`.
    assert {object_of(name) for name in NAMES} == {object_of(name) for name in names}


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(object_of(name))])
def test_functions_have_their_sections(name: str) -> None:
    found = object_of(name)
    titled = sections(found)
    assert parameters(found) - described(titled.get("Parameters", "")) == set()
    assert inspect.signature(found).return_annotation is None or "Returns" in titled


@pytest.mark.parametrize("name", [name for name in NAMES if is_dataclass(object_of(name))])
def test_dataclasses_describe_their_attributes(name: str) -> None:
    found = object_of(name)
    own = {field.name for field in fields(found) if field.name in vars(found)["__annotations__"]}
    titled = sections(found)
    assert {name for name in own if name[0] != "_"} - described(titled["Attributes"]) == set()
