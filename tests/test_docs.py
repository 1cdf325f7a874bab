"""The documents: their links have targets, and their examples run.

The Python and ``sh`` blocks of a page run one after another in one program, in an empty directory.
A block below the comment ``<!-- not run: why -->`` is skipped, and so are ``console`` blocks.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(
    r"(?P<before>[^\n]*)\n+```(?P<language>\w*)[^\n]*\n(?P<code>.*?)\n```", re.DOTALL
)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def prose(page: Path) -> str:
    """Return the text without code, which may look like links and headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("[", "(").replace("]", ")"), text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, by GitHub's rule."""
    headings = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def examples(page: Path) -> list[str]:
    return [
        block["code"] if block["language"] == "python" else run_by_shell(block["code"])
        for block in FENCE.finditer("\n" + page.read_text())
        if block["language"] in ("python", "sh") and "not run" not in block["before"]
    ]


def run_by_shell(commands: str) -> str:
    """Return Python code that runs shell commands, and fails with the first that fails."""
    return f'import subprocess\nsubprocess.run(["sh", "-euc", {commands!r}], check=True)'


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", [name for name in NAMES if examples(ROOT / name)])
def test_examples_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text("\n\n".join(examples(ROOT / name)))
    beside_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Processes of MPI share the processors, also for what their NumPy computes.
    more = {"PATH": beside_python, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=os.environ | more,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_page_is_found() -> None:
    assert "README.md" in NAMES
