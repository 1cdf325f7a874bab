"""Plot the convergence of iterative methods: the residuals of each step."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from outcore.errors import DivergenceError, InvalidError
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

__all__ = ["draw_convergence"]

COLOURS = ("#1f6f8b", "#c8553d", "#2e8b57", "#8e6bb0", "#d98c21", "#7a7a7a")


def draw_convergence(
    reports: Report | DivergenceError | Mapping[str, Report | DivergenceError], path: PathLike
) -> Path:
    """Draw the residuals of one or more calls of iterative methods, as PNG or SVG.

    Parameters
    ----------
    reports
        A report with a history, or an `outcore.errors.DivergenceError`; or several, keyed by their
        names in the picture.
    path
        File to write; its name ends in ``.png`` or ``.svg``.

    Returns
    -------
    Path
        Path of the picture.

    Raises
    ------
    InvalidError
        If a report has no history, or the file name ends in another suffix.
    """
    target = Path(path)
    named: dict[str, Report | DivergenceError]
    if isinstance(reports, Report | DivergenceError):
        named = {getattr(reports, "verb", "diverged"): reports}
    else:
        named = dict(reports)
    if not named or not all(report.history for report in named.values()):
        raise InvalidError(
            "need reports of gauss_seidel, jacobi, cg or gmres: others have no history of residuals"
        )
    if target.suffix not in (".png", ".svg"):
        raise InvalidError(f"the name of a picture ends in .png or .svg, have {target.name}")
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, (name, report) in enumerate(named.items()):
        steps = range(1, len(report.history) + 1)
        axes.semilogy(
            steps, report.history, color=COLOURS[number % len(COLOURS)], linewidth=1.8,
            marker="o" if len(steps) <= 40 else None, markersize=3.5,
            label=f"{name}: {len(steps)} steps",
        )  # fmt: skip
    first = next((each for each in named.values() if isinstance(each, Report)), None)
    if first is not None:
        axes.set_title(f"n = {first.n}, {first.dtype}", loc="left", fontsize=11)
    axes.set_xlabel("sweep or iteration")
    axes.set_ylabel("residual / right-hand side")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    if target.suffix == ".png":
        FigureCanvasAgg(figure).print_png(str(target))  # type: ignore[no-untyped-call]
    else:
        FigureCanvasSVG(figure).print_svg(str(target))  # type: ignore[no-untyped-call]
    return target
