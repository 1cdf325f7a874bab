"""A report as one self-contained HTML page, without network access or other files."""

import os
from importlib.resources import files
from urllib.parse import quote

from outcore.report import report_file
from outcore.report.charts import draw_bars, draw_history
from outcore.report.document import document, section
from outcore.report.heat_map import SHAPE, draw_heat_map
from outcore.report.lanes import draw_lanes, zoom_data
from outcore.report.report import Report, joined_spans
from outcore.report.spans import Spans
from outcore.report.svg import element, escaped
from outcore.storage.pool_path import PoolPath, is_url
from outcore.storage.volumes import AnyPath, PathLike, as_path

_MOST_MAPS = 6
_JOINED_FROM = 1 << 16
"""A trace with fewer spans than this was never shortened (`crates/client/src/trace.rs`)."""


def write_page(report: Report, path: PathLike) -> None:
    """Write the page of a report to `path`, and replace an existing file."""
    report_file.replace(path, html_page(report, as_path(path)).encode())


def html_page(report: Report, path: AnyPath | None = None) -> str:
    """Return the page of a report as HTML; `path` is its file, for links to files beside it.

    It shows the figures of the printed report, the timeline, and a map of reads and writes over
    time for each array. Below are the bytes beside plan and lower bound, and the residuals of an
    iterative method.
    """
    here = files("outcore.report")
    sections = [_figures(report, path)]
    script = ""
    names, rows = joined_spans(report)
    if rows is not None and len(rows):
        spans = Spans.of(rows)
        sections += [_timeline(spans), _maps(names, spans)]
        script = element("script", zoom_data(spans), type="application/json", id="zoom-data")
        script += element("script", (here / "zoom.js").read_text())
    else:
        sections.append(
            element(
                "p",
                "This report has no spans, so there is no timeline and no map. Factors keep the "
                "figures of their factorization only; save the report that the call returns.",
            )
        )
    sections.append(section("Bytes moved", draw_bars(report), _about_bytes(report)))
    if report.history:
        sections.append(
            section("Residuals", draw_history(report.history), "One point for each step.")
        )
    return document(report.title, *sections, script=script)


def _figures(report: Report, path: AnyPath | None) -> str:
    rows = [
        element("tr", element("th", escaped(name), scope="row"), element("td", cell))
        for name, said in report.rows()
        for cell in [_trace_link(report.trace, path) if name == "trace" else escaped(said)]
    ]
    notes = [element("li", escaped(note)) for note in report.notes]
    return element("table", *rows) + (
        element("h2", "Notes") + element("ul", *notes) if notes else ""
    )


def _trace_link(trace: str, path: AnyPath | None) -> str:
    """Return a link to a trace, relative to the page's file, so that both can be moved together."""
    if is_url(trace) or path is None or isinstance(path, PoolPath):
        return escaped(trace)
    place = os.path.relpath(trace, path.resolve().parent)
    return element("a", escaped(place), href=quote(place)) + escaped(
        ", of all processes and servers; open it at ui.perfetto.dev"
    )


def _timeline(spans: Spans) -> str:
    buttons = [
        element("button", escaped(sign), type="button", data_zoom=action, aria_label=label)
        for action, sign, label in (
            ("in", "+", "closer"),
            ("out", "-", "further away"),
            ("left", "←", "earlier"),
            ("right", "→", "later"),
            ("all", "all", "the whole call"),
        )
    ]
    controls = element("p", *buttons, "Or draw over a part of it with the mouse.", class_="zoom")
    return section(
        "Timeline",
        controls + draw_lanes(spans),
        "The height of a lane is the share of each moment in which it worked. A call is fast if "
        "disk and arithmetic work at the same time; waiting is disk time that arithmetic did not "
        "hide.",
    )


def _maps(names: list[str], spans: Spans) -> str:
    numbers = spans.arrays()
    shown = [
        section(
            f"Reads and writes of {name}",
            draw_heat_map(spans, number, name),
            f"A cell is 1/{SHAPE[1]} of the time and 1/{SHAPE[0]} of the file. The more bytes of "
            "it were moved, the stronger its colour (by the square root). Where an array has "
            "several shard files, they lie over each other.",
        )
        for number in numbers[:_MOST_MAPS]
        for name in [names[number]]
    ]
    if len(numbers) > _MOST_MAPS:
        shown.append(element("p", f"{len(numbers) - _MOST_MAPS} more arrays are not shown."))
    if len(spans) >= _JOINED_FROM:
        shown.append(
            element(
                "p",
                "So many transfers were made that neighbours in time may be recorded as one: "
                "places in the maps are then approximate.",
            )
        )
    return "".join(shown)


def _about_bytes(report: Report) -> str:
    if report.words_lower_bound is None:
        return "Bytes moved, beside the plan."
    return (
        "Bytes moved, beside the plan. The lower bound is the least that any "
        "algorithm must move with this memory."
    )
