"""The check of plain English finds sentences without an actor, and accepts sentences with one."""

import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parent.parent / "tools/plain-english"

FOUND = [
    "What was never written is zero.",
    "Whom a client waits for in vain for 60 seconds is an error.",
    "Do the same, for who notes the time.",
    "Of iterators the report tells the end.",
    "The server sends what was read.",
    "A copy that was stopped goes on when it is called again.",
]
ACCEPTED = [
    "Elements that were never written read as zero.",
    "A server that does not answer for 60 s raises an error.",
    "The index says what is there.",
    "The client goes on to the next block.",
    "What may a server do without the manager?",
    "`what is it` stays code.",
]


def check(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run([CHECK, path], capture_output=True, text=True)


@pytest.mark.parametrize("sentence", FOUND)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "# Page\n\n{}\n"),
        ("module.py", '"""A module.\n\n{}\n"""\n'),
        ("comment.py", "x = 1  # One.\n# {}\n"),
        ("code.rs", "//! {}\nfn f() {{}}\n"),
        ("code.c", "/* {} */\nint i;\n"),
        ("lines.h", "// One.\n// {}\nint i;\n"),
        ("settings.toml", "# {}\nx = 1\n"),
        ("Makefile", "# {}\nall:\n\ttrue\n"),
        ("script", "#!/bin/bash\n# {}\ntrue\n"),
        ("program", "#!/usr/bin/env python3\n# {}\nx = 1\n"),
        ("message.py", "def f(n):\n    raise E(f'need {{n}}: '\n            '{}')\n"),
        ("message.rs", 'fn f() {{\n    let a = \'"\'; g("need {{a}}: \\\n        {}");\n}}\n'),
    ],
)
def test_finds(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    done = check(tmp_path / name, text.format(sentence))
    assert done.returncode == 1, done.stdout
    assert "1 findings" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short.py", "x = 'what is it'\n"),
        ("short.rs", 'const X: &str = "what is it";\n'),
        ("tests.rs", 'fn f() {\n    g("the server sends what was read");\n}\n'),
        ("inner.rs", '#[cfg(test)]\nmod tests {\n    const X: &str = "it is what was read";\n}\n'),
        ("script", "echo 'the server sends # what was read'\n"),
    ],
)
def test_accepts_strings_that_users_do_not_read(tmp_path: Path, name: str, text: str) -> None:
    done = check(tmp_path / name, text)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("sentence", ACCEPTED)
def test_accepts(tmp_path: Path, sentence: str) -> None:
    done = check(tmp_path / "page.md", f"# Page\n\n{sentence}\n\n```text\nWhat is code.\n```\n")
    assert done.returncode == 0, done.stdout
