"""ARCHITECTURE.md against the code: the tables of files, and the invariants that can be seen."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / "python/outcore"
CRATES = ROOT / "crates"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
NAMED = set(re.findall(r"`([\w/]+\.(?:py|rs))`", PAGE))


def test_every_file_has_its_line() -> None:
    modules = {str(path.relative_to(PYTHON)) for path in PYTHON.rglob("*.py")}
    sources = {str(path.relative_to(CRATES)) for path in CRATES.glob("*/src/**/*.rs")}
    roots = ("__init__.py", "lib.rs", "mod.rs", "main.rs")
    files = {name for name in modules | sources if Path(name).name not in roots}
    assert files - NAMED == set(), "not in ARCHITECTURE.md"
    short = {Path(name).name for name in files}
    gone = {name for name in NAMED - files if name not in short and not (ROOT / name).exists()}
    assert gone == set(), "only in ARCHITECTURE.md"


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported when this one is: not those for type checkers only."""
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
