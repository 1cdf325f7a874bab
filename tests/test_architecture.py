"""ARCHITECTURE.md against the code: the files it names, and the invariants a program can check."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / "python/outcore"
CRATES = ROOT / "crates"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_file_describes_itself() -> None:
    modules = {
        path: ast.get_docstring(ast.parse(path.read_text())) for path in PYTHON.rglob("*.py")
    }
    sources = {path: path.read_text() for path in CRATES.glob("*/src/**/*.rs")}
    silent = [path for path, text in modules.items() if not text]
    silent += [path for path, text in sources.items() if not text.startswith("//! ")]
    assert silent == [], "no description in the first lines"


def test_files_of_the_page_exist() -> None:
    named = re.findall(r"`([\w/]+/[\w/]+\.(?:py|rs))`", PAGE)
    gone = [
        name
        for name in named
        if not any((root / name).exists() for root in (ROOT, PYTHON, CRATES, CRATES / "client/src"))
    ]
    assert len(named) > 20
    assert gone == []


def test_the_page_is_short() -> None:
    assert len(PAGE.encode()) <= 10_000


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that an import of this one imports, without those for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


def test_no_circles_between_modules() -> None:
    files = {
        ".".join(path.relative_to(PYTHON.parent).with_suffix("").parts): path
        for path in PYTHON.rglob("*.py")
    }
    graph = {
        name: {found for found in imports(ast.parse(path.read_text())) if found in files}
        for name, path in files.items()
        if path.name != "__init__.py"
    }
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def code(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text())


def test_unsafe_is_where_it_may_be() -> None:
    with_unsafe = {
        path.relative_to(CRATES).parts[0]
        for path in CRATES.glob("*/src/**/*.rs")
        if re.search(r"\bunsafe\b", code(path).replace("unsafe_code", ""))
    }
    assert with_unsafe <= {"memory", "disk", "net", "py"}


def test_core_is_pure() -> None:
    for path in (CRATES / "core/src").rglob("*.rs"):
        assert not re.search(r"std::(time|thread|fs|net|process|env)\b", code(path)), path
    assert "forbid(unsafe_code)" in (CRATES / "core/src/lib.rs").read_text()


def test_crates_depend_downwards() -> None:
    below = {"core": set(), "memory": {"core"}, "disk": {"core", "memory"}}
    below |= {"client": {"core", "memory", "disk"}, "server": {"core", "memory"}}
    below |= {"net": {"core", "memory"}, "py": {*below, "client", "net", "server"}}
    for crate, allowed in below.items():
        manifest = (CRATES / crate / "Cargo.toml").read_text().split("[dev-dependencies]")[0]
        assert set(re.findall(r"^outcore-(\w+)", manifest, re.MULTILINE)) <= allowed, crate


def test_invariants_are_marked() -> None:
    assert len(re.findall(r"^- Invariant: ", PAGE, re.MULTILINE)) > 10
