"""ARCHITECTURE.md against the code: the files it names, and the invariants a program can check."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / "python/outcore"
CRATES = ROOT / "crates"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module."""
    return {path: ast.parse(path.read_text()) for path in PYTHON.rglob("*.py")}


def test_every_file_describes_itself() -> None:
    modules = {path: ast.get_docstring(tree) for path, tree in trees().items()}
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


def imports(tree: ast.AST, *, with_types: bool = False) -> Iterator[str]:
    """Yield the modules that an import of this one imports, with those for type checkers or not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module
        elif not isinstance(node, ast.expr) and (with_types or not is_for_types(node)):
            yield from imports(node, with_types=with_types)


def is_for_types(node: ast.AST) -> bool:
    """Whether only type checkers run a statement."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules of a package and their files, without those that packages begin with."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }


def test_no_circles_between_modules() -> None:
    files = modules_of(PYTHON)
    graph = {
        name: {found for found in imports(trees()[path]) if found in files}
        for name, path in files.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def folder_of(module: str) -> str:
    """Return the package of a module, such as ``outcore.linalg._lu.slabs``."""
    return module.rpartition(".")[0]


def test_no_circles_between_packages() -> None:
    files = modules_of(PYTHON)
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        below = {
            folder_of(found) for found in imports(trees()[path], with_types=True) if found in files
        }
        graph.setdefault(folder_of(name), set()).update(below - {folder_of(name), "outcore"})
    del graph["outcore"]  # public modules, which may lie above or below any package
    assert len(list(TopologicalSorter(graph).static_order())) > 30


def test_folders_have_few_entries() -> None:
    folders = {path.parent for path in PYTHON.rglob("*.py")} - {PYTHON, PYTHON / "cli"}
    entries = {
        folder.relative_to(PYTHON).as_posix(): len(
            [entry for entry in folder.iterdir() if entry.name != "__pycache__"]
        )
        for folder in folders
    }
    assert {folder: count for folder, count in entries.items() if count > 20} == {}


def code(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text())


def test_unsafe_is_where_it_may_be() -> None:
    with_unsafe = {
        path.relative_to(CRATES).parts[0]
        for path in CRATES.glob("*/src/**/*.rs")
        if re.search(r"\bunsafe\b", code(path).replace("unsafe_code", ""))
    }
    assert with_unsafe <= {"memory", "disk", "net", "py", "capi", "hdf5"}


def test_core_is_pure() -> None:
    for path in (CRATES / "core/src").rglob("*.rs"):
        assert not re.search(r"std::(time|thread|fs|net|process|env)\b", code(path)), path
    assert "forbid(unsafe_code)" in (CRATES / "core/src/lib.rs").read_text()


def test_crates_depend_downwards() -> None:
    below = {"core": set(), "memory": {"core"}, "disk": {"core", "memory"}}
    below |= {"client": {"core", "memory", "disk"}, "server": {"core", "memory"}}
    below |= {"net": {"core", "memory"}}
    below |= {"mount": {"core", "memory", "client"}}
    below |= {"capi": {"core", "memory", "disk", "client", "net"}}
    below |= {"hdf5": {"core", "memory", "client", "net"}}
    below |= {"py": {*below, "client", "net", "server", "mount"} - {"capi", "hdf5"}}
    for crate, allowed in below.items():
        manifest = (CRATES / crate / "Cargo.toml").read_text().split("[dev-dependencies]")[0]
        assert set(re.findall(r"^outcore-(\w+)", manifest, re.MULTILINE)) <= allowed, crate


def drawn(title: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the box of each name in the drawing after a title, and the boxes below each box."""
    drawing = PAGE.split(title, 1)[1].split("```mermaid", 1)[1].split("```", 1)[0]
    labels: dict[str, str] = {}
    arrows: dict[str, set[str]] = {}
    for line in drawing.split("graph TD")[1].strip().splitlines():
        boxes = re.findall(r'(\w+)(?:\["(.*?)"\])?(?= -->|$)', line)
        assert len(boxes) == 2, line
        for box, label in boxes:
            labels[box] = label or labels.get(box, box)
        arrows.setdefault(boxes[0][0], set()).add(boxes[1][0])
    box_of = {
        name.partition(" ")[0]: box
        for box, label in labels.items()
        for name in label.partition(":")[0].split(", ")
    }
    below: dict[str, set[str]] = {}
    for box in TopologicalSorter(arrows).static_order():
        below[box] = {box}.union(*(below[each] for each in arrows.get(box, ())))
    return box_of, below


def not_drawn(title: str, uses: dict[str, set[str]]) -> list[str]:
    """Return the uses whose arrows the drawing after a title lacks."""
    box_of, below = drawn(title)
    assert sorted(uses) == sorted(set(box_of) - {"_core"})
    return [
        f"{name} uses {used}"
        for name, below_it in uses.items()
        for used in sorted(below_it)
        if box_of[used] not in below[box_of[name]]
    ]


def test_the_drawing_of_packages_has_their_imports() -> None:
    uses: dict[str, set[str]] = {
        folder.parent.name: set() for folder in PYTHON.glob("*/__init__.py")
    }
    for path, tree in trees().items():
        if (own := path.relative_to(PYTHON).parts[0]) in uses:
            found = {name.split(".")[1] for name in imports(tree) if name.startswith("outcore.")}
            uses[own] |= found & {*uses, "_core"}
    assert not_drawn("## Layers", uses) == []


def test_the_drawing_of_crates_has_their_dependencies() -> None:
    manifests = {path.parent.name: path.read_text() for path in CRATES.glob("*/Cargo.toml")}
    del manifests["sim"]
    uses = {
        crate: set(
            re.findall(r"^outcore-?(\w+)", text.split("[dev-dependencies]")[0], re.MULTILINE)
        )
        for crate, text in manifests.items()
    }
    for crate, used in uses.items():
        uses[crate] = {"outcored" if name == "d" else name for name in used}
    assert not_drawn("\nCrates:\n", uses) == []


def test_no_circles_in_the_network_client() -> None:
    files = {path.stem: path for path in (CRATES / "net/src/client").glob("*.rs")}
    del files["mod"]
    graph = {
        name: set(re.findall(r"\bcrate::client::(\w+)", code(path))) - {name}
        for name, path in files.items()
    }
    assert set(TopologicalSorter(graph).static_order()) == set(files)


def test_invariants_are_marked() -> None:
    assert len(re.findall(r"^- Invariant: ", PAGE, re.MULTILINE)) > 10
