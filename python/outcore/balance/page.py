"""A balance as one self-contained HTML page."""

from collections.abc import Sequence

from outcore.balance.balance import Balance, Row, Use, rate
from outcore.balance.model import Cluster
from outcore.report import report_file
from outcore.report.document import document, section
from outcore.report.svg import LEFT, WIDTH, element, escaped, picture, text, ticks
from outcore.storage.volumes import PathLike

_HEIGHT, _TOP = 200, 10
_POINTS = 64

_STYLES = {
    "another disk": "another",
    "another channel": "residual dashed",
    "as it is": "residual",
}
"""The class of each curve, by its name; later ones cover earlier ones."""


def write_page(balance: Balance, path: PathLike) -> None:
    """Write the page of a balance to `path`, and replace an existing file."""
    report_file.replace(path, html_page(balance).encode())


def html_page(balance: Balance) -> str:
    """Return the page of a balance: findings, tables, and the totals over the remote transfers."""
    found = [element("li", escaped(sentence)) for sentence in balance.findings()]
    drawings = [
        section(
            f"Total rate over the share of remote transfers: {use.name}",
            draw_totals(use),
            "The total of all hosts by the model: as it is, and with one more part in each host.",
        )
        for use in balance.uses
        if use.cluster.has_network
    ]
    tables = [_table(rows) for rows in balance.tables() if len(rows) > 1]
    return document(f"Balance of {balance.subject}", element("ul", *found), *drawings, *tables)


def _table(rows: Sequence[Row]) -> str:
    head, *body = rows
    lines = [element("tr", *(element("th", escaped(cell), scope="col") for cell in head))]
    lines += [element("tr", *(element("td", escaped(cell)) for cell in row)) for row in body]
    return element("section", element("table", *lines), class_="wide")


def draw_totals(use: Use) -> str:
    """Draw the total over the share of remote transfers, now and with one more part."""
    now, channel, disk = use.cluster, use.cluster.with_channel(), use.cluster.with_disk()
    clusters = dict(zip(_STYLES, (disk, channel, now), strict=True))
    most = max(each.total(share) for each in clusters.values() for share in (0.0, 1.0))

    def x(share: float) -> float:
        return LEFT + WIDTH * share

    def y(bytes_s: float) -> float:
        return _TOP + _HEIGHT * (1 - bytes_s / most)

    def curve(cluster: Cluster, style: str) -> str:
        shares = [point / _POINTS for point in range(_POINTS + 1)]
        points = " ".join(f"{x(f):.1f},{y(cluster.total(f)):.1f}" for f in shares)
        return element("polyline", class_=style, points=points)

    parts = []
    for value, _ in ticks(most, 5):
        parts += [
            element("line", class_="ground", x1=LEFT, x2=LEFT + WIDTH, y1=y(value), y2=y(value)),
            text(LEFT - 10, y(value) + 4, rate(value) if value else "0", text_anchor="end"),
        ]
    for value, said in ticks(100, 10):
        parts.append(text(x(value / 100), _TOP + _HEIGHT + 18, f"{said} %", text_anchor="middle"))
    parts += [
        *(curve(cluster, _STYLES[name]) for name, cluster in clusters.items()),
        element("rect", class_="frame", x=LEFT, y=_TOP, width=WIDTH, height=_HEIGHT),
        text(
            LEFT + WIDTH / 2, _TOP + _HEIGHT + 36, "share of remote transfers", text_anchor="middle"
        ),
    ]
    legend_y = _TOP + _HEIGHT + 60
    for number, name in enumerate(reversed(_STYLES)):
        at = LEFT + number * WIDTH / len(_STYLES)
        sample = {"x1": at, "x2": at + 30, "y1": legend_y - 4, "y2": legend_y - 4}
        parts += [
            element("line", class_=_STYLES[name], **sample), text(at + 38, legend_y, name),
        ]  # fmt: skip
    said = f"From {rate(now.total(0.0))}, all local, to {rate(now.total(1.0))}, all remote."
    title = f"Total rate: {use.name}"
    return picture(f"totals-{use.name}", title, said, legend_y + 8, *parts)
