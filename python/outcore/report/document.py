"""A self-contained HTML page: its head, its style, and sections with a picture each."""

from importlib.resources import files

from outcore.report.svg import element, escaped

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""With this policy a browser fetches nothing, whatever the page contains."""


def document(title: str, *sections: str, script: str = "") -> str:
    """Return a page with a title and sections, which are markup already."""
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        element("title", escaped(title)),
        element("style", (files("outcore.report") / "page.css").read_text()),
    ]
    body = element("main", element("h1", escaped(title)), *sections)
    return (
        "<!doctype html>\n"
        + element("html", element("head", *head), element("body", body, script), lang="en")
        + "\n"
    )


def section(title: str, drawing: str, caption: str) -> str:
    """Return a picture with its heading and its caption."""
    about = element("figcaption", escaped(caption))
    return element("section", element("h2", escaped(title)), element("figure", drawing, about))
