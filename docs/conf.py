"""Sphinx's settings for the site that ``make docs`` builds in docs/_site.

The source directory is the root of the repository: README.md and others are pages too.
"""

import re
from dataclasses import is_dataclass

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import outcore

project = "outcore"
version = release = outcore.__version__
copyright = "the authors of outcore"  # noqa: A001
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "docs/api/*.rst"]
exclude_patterns = ["docs/_site"]
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]

# Names in single backticks are links, as in NumPy's docstrings; parameters are not.
default_role = "autolink"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the sections of a docstring say which types it takes
autosummary_generate = False
numpydoc_show_class_members = False
myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [
    # Their pages are elsewhere: the build downloads no lists of them.
    ("py:.*", r"(numpy|scipy|zarr|io|os|pathlib|contextlib|concurrent)\..*"),
    ("py:.*", r"outcore\.storage\.pool_future\.T"),
]

html_theme = "pydata_sphinx_theme"
html_title = "outcore"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"show_nav_level": 2, "secondary_sidebar_items": ["page-toc"]}


def add_contents(app: Sphinx, name: str, text: list[str]) -> None:
    """Add a tree of pages to an index: the pages that its tables or lists name, by section."""
    if name not in (root_doc, "docs/decisions/README"):
        return
    parts = re.split(r"^## (.*)$", f"## \n{text[0]}", flags=re.MULTILINE)[1:]
    for title, section in zip(parts[::2], parts[1::2], strict=True):
        pages = re.findall(r"^(?:\||-) \[.+\]\(([^)#]+)\.(?:md|rst)\)", section, re.MULTILINE)
        if pages:
            options = f":caption: {title}\n" if title else ""
            names = "\n".join(pages)
            text[0] += f"\n```{{toctree}}\n:hidden:\n{options}\n{names}\n```\n"


def hide_constructor(
    app: Sphinx, kind: str, name: str, found: object, *_: object
) -> tuple[str, None] | None:
    """Show no arguments of a class that only functions of outcore create."""
    is_made_by_users = is_dataclass(found) or "Parameters\n" in (found.__doc__ or "")
    return None if kind != "class" or is_made_by_users else ("", None)


def setup(app: Sphinx) -> None:
    """Connect the functions above, and show diagrams and bytes as they are."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-signature", hide_constructor)
    for language in ("hex", "mermaid"):
        app.add_lexer(language, TextLexer)
