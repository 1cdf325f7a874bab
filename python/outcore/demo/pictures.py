"""Pictures of the scattering demonstration, drawn without a display."""

from __future__ import annotations

import math
from os import PathLike

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from outcore.demo import series
from outcore.demo.sphere import SphereProblem

# Half the width of the square in the picture, in radii.
_EXTENT = 3.0

# Limit of the number of points: each costs one pass over all triangles.
_MOST_POINTS = 20_000


def plane_fields(
    problem: SphereProblem, q: NDArray[np.complex128], resolution: int
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return the scattered and the total field on a grid in the plane of incidence.

    Parameters
    ----------
    problem : SphereProblem
        The solved problem.
    q : (n,) ndarray of complex128
        Normal derivative at the collocation points.
    resolution : int
        Points along each side of the square.

    Returns
    -------
    scattered, total : (resolution, resolution) ndarrays of complex128
        For an incident wave of unit amplitude, NaN inside the sphere.  Columns
        follow ``problem.direction`` and rows ``problem.transverse``, both from
        -3 to 3 radii at pixel centres.
    """
    if not 2 <= resolution <= math.isqrt(_MOST_POINTS):
        raise ValueError(
            f"resolution must be from 2 to {math.isqrt(_MOST_POINTS)}, got {resolution}"
        )
    pixel = 2 * _EXTENT / resolution
    ticks = -_EXTENT + pixel * (np.arange(resolution) + 0.5)
    along, across = np.meshgrid(ticks, ticks)
    points = (
        along[..., np.newaxis] * problem.direction + across[..., np.newaxis] * problem.transverse
    )
    scattered = np.full(along.shape, complex(math.nan, math.nan), dtype=np.complex128)
    outside = np.hypot(along, across) >= 1.0
    scattered[outside] = problem.scattered_field(q, points[outside])
    total = scattered.copy()
    total[outside] += series.incident_field(problem.k, points[outside], problem.direction)
    return scattered, total


def draw_field(
    problem: SphereProblem,
    q: NDArray[np.complex128],
    path: str | PathLike[str],
    resolution: int = 140,
) -> None:
    """Draw the computed scattered and total field and the far-field pattern to a PNG file.

    Parameters
    ----------
    problem : SphereProblem
        The solved problem.
    q : (n,) ndarray of complex128
        Normal derivative at the collocation points.
    path : path-like
        File to write.
    resolution : int, optional
        Points of the field along each side; each point outside the sphere
        costs a pass over all triangles.
    """
    figure = Figure(figsize=(18.5, 5.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    *planes, right = figure.subplots(1, 3, width_ratios=[1.0, 1.0, 1.05])
    fields = plane_fields(problem, q, resolution)
    for axes, name, field in zip(planes, ("Scattered", "Total"), fields, strict=True):
        image = _draw_plane(axes, field)
        figure.colorbar(
            image, ax=axes, label="real part / incident amplitude", shrink=0.85, pad=0.02
        )
        axes.set_title(f"{name} field, k = {problem.k:g}, {problem.n} unknowns")
    _draw_pattern(right, problem, q)
    right.set_title(
        f"Far field: error {problem.far_field_error(q):.1e}"
        f" (on the surface {problem.surface_error(q):.1e})"
    )
    figure.savefig(path, format="png")


def _draw_plane(axes: Axes, field: NDArray[np.complex128]) -> ScalarMappable:
    """Draw the real part, with the sphere as a disc."""
    # The total field vanishes on the sphere. Zero inside continues it, while a gap would appear as
    # a jagged rim around the disc.
    shown = np.nan_to_num(field.real)
    limit = float(np.abs(shown).max())
    image = axes.imshow(
        shown,
        origin="lower",
        extent=(-_EXTENT, _EXTENT, -_EXTENT, _EXTENT),
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        interpolation="bicubic",
    )
    axes.add_patch(Circle((0.0, 0.0), 1.0, facecolor="0.25", edgecolor="black"))
    axes.annotate(
        "incident",
        xy=(-0.45 * _EXTENT, -0.9 * _EXTENT),
        xytext=(-0.95 * _EXTENT, -0.9 * _EXTENT),
        verticalalignment="center",
        fontweight="bold",
        arrowprops={"arrowstyle": "-|>", "linewidth": 2, "facecolor": "black"},
    )
    axes.set_xlabel("along the incident wave / radius")
    axes.set_ylabel("across / radius")
    return image


def _draw_pattern(axes: Axes, problem: SphereProblem, q: NDArray[np.complex128]) -> None:
    """Draw the series as a line and the computed pattern as dots."""
    fine = np.linspace(0.0, math.pi, 721)
    coarse = np.linspace(0.0, math.pi, 61)
    exact = np.abs(series.far_field(problem.k, fine)) ** 2
    computed = np.abs(problem.far_field(q, coarse)) ** 2
    axes.semilogy(np.degrees(fine), exact, color="0.2", label="partial-wave series")
    axes.semilogy(
        np.degrees(coarse),
        computed,
        linestyle="none",
        marker="o",
        markersize=4.5,
        color="tab:red",
        label="boundary elements",
    )
    axes.set_xlim(0.0, 180.0)
    axes.set_xticks(range(0, 181, 30))
    axes.set_xlabel("scattering angle / degrees")
    axes.set_ylabel("differential cross-section |f|² / radius²")
    axes.grid(visible=True, which="both", color="0.9")
    axes.legend(frameon=False)
