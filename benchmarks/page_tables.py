"""Tables that a benchmark writes into a page of the documents, between two comments."""

import re
from collections.abc import Sequence
from pathlib import Path

BETWEEN = re.compile(r"(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put_into(page: Path, tables: str) -> None:
    """Replace the tables of a page."""
    text, count = BETWEEN.subn(lambda _: f"\n{tables}\n\n", page.read_text())
    if count != 1:
        raise ValueError(f"{page} has no place for tables")
    page.write_text(text)
