"""The scattering demonstration: series, mesh, matrix blocks and accuracy."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import eval_legendre, spherical_jn, spherical_yn

from outcore.demo import series
from outcore.demo.pictures import draw_field, plane_fields
from outcore.demo.sphere import SphereProblem

ComplexArray = NDArray[np.complex128]

WHOLE = slice(None)
DIRECTION = np.array([1.0, 2.0, -2.0]) / 3.0

# Eigenvalues of the unit ball for radial functions: zeros of j_0 and of j_0'.
DIRICHLET = math.pi
NEUMANN = 4.493409457909064


def dense_solve(matrix: ComplexArray, rhs: ComplexArray) -> ComplexArray:
    """Return the solution by a dense solver."""
    return np.linalg.solve(matrix, rhs).astype(np.complex128, copy=False)


def solve(problem: SphereProblem) -> ComplexArray:
    """Return the solution of a small problem."""
    return dense_solve(problem.fill(WHOLE, WHOLE), problem.rhs())


def random_points(count: int, radius: float) -> NDArray[np.float64]:
    """Return (count, 3) points distributed over a sphere."""
    points = np.random.default_rng(7).standard_normal((count, 3))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    return points


@pytest.fixture(scope="module")
def solved() -> list[tuple[SphereProblem, ComplexArray]]:
    """Problems of levels 1 to 3 at the default wave number, with solutions."""
    problems = [SphereProblem(level) for level in (1, 2, 3)]
    return [(problem, solve(problem)) for problem in problems]


@pytest.mark.parametrize("k", [0.1, 1.0, math.pi, 6.0, 25.0])
def test_series_meets_the_boundary_condition(k: float) -> None:
    points = random_points(200, 1.0)
    total = series.incident_field(k, points, DIRECTION) + series.scattered_field(
        k, points, DIRECTION
    )
    assert np.abs(total).max() < 1e-12


@pytest.mark.parametrize("k", [0.5, 6.0])
def test_series_surface_derivative_is_that_of_the_field(k: float) -> None:
    points = random_points(50, 1.0)
    step = 1e-4

    def total(radius: float) -> ComplexArray:
        where = radius * points
        return series.incident_field(k, where, DIRECTION) + series.scattered_field(
            k, where, DIRECTION
        )

    # One-sided, because the series does not hold inside; second order.
    slope = (4 * total(1 + step) - total(1 + 2 * step)) / (2 * step)
    exact = series.surface_derivative(k, points @ DIRECTION)
    assert np.abs(slope - exact).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("k", [0.1, 1.0, math.pi, 6.0, 25.0])
def test_series_obeys_the_optical_theorem(k: float) -> None:
    cosine, weight = np.polynomial.legendre.leggauss(80)
    pattern = series.far_field(k, np.arccos(cosine))
    scattered = 2 * math.pi * np.sum(weight * np.abs(pattern) ** 2)
    extinguished = 4 * math.pi / k * series.far_field(k, 0.0).imag
    assert scattered == pytest.approx(float(extinguished), rel=1e-12)


def test_series_far_field_is_the_limit_of_the_scattered_field() -> None:
    k, radius = 6.0, 1e6
    angles = np.linspace(0.0, math.pi, 19)
    points = radius * np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    near = series.scattered_field(k, points, [1.0, 0.0, 0.0])
    far = series.far_field(k, angles) * np.exp(1j * k * radius) / radius
    assert np.abs(near - far).max() < 1e-4 * np.abs(far).max()


def test_series_refuses_points_inside_and_bad_wave_numbers() -> None:
    with pytest.raises(ValueError, match="outside"):
        series.scattered_field(1.0, [[0.5, 0.0, 0.0]], DIRECTION)
    with pytest.raises(ValueError, match="wave number"):
        series.far_field(0.0, 0.0)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_mesh_is_closed_and_covers_the_sphere(level: int) -> None:
    problem = SphereProblem(level)
    assert problem.n == 20 * 4**level
    corners = np.round(problem.triangles.reshape(-1, 3), 9) + 0.0
    unique, number = np.unique(corners, axis=0, return_inverse=True)
    faces = number.reshape(-1, 3)
    edges = {(int(face[i]), int(face[i - 2])) for face in faces for i in range(3)}
    # Every directed edge occurs once and its reverse once: closed, oriented.
    assert len(edges) == 3 * problem.n
    assert all((b, a) in edges for a, b in edges)
    assert len(unique) - len(edges) // 2 + problem.n == 2
    assert problem.areas.sum() == pytest.approx(4 * math.pi, rel=1e-13)
    assert problem.areas.min() > 0
    assert problem.areas.max() < 2 * problem.areas.min()
    middles = problem.triangles.mean(axis=1)
    assert np.all(np.linalg.norm(problem.points - middles, axis=1) < 0.25)
    assert np.allclose(np.linalg.norm(problem.points, axis=1), 1.0, atol=1e-14)


@pytest.mark.parametrize(
    ("rows", "cols"),
    [
        (slice(0, 320), slice(0, 320)),
        (slice(37, 101), slice(80, 300)),
        (slice(80, 300), slice(37, 101)),
        (slice(5, 6), slice(None)),
        (slice(None), slice(319, 400)),
        (slice(-20, None), slice(None, -250)),
        (slice(3, 300, 7), slice(300, 3, -5)),
        (slice(10, 10), slice(0, 4)),
        (slice(0, 4), slice(10, 10)),
    ],
)
def test_blocks_are_parts_of_the_matrix(rows: slice, cols: slice) -> None:
    problem = SphereProblem(2)
    whole = problem.fill(WHOLE, WHOLE)
    block = problem.fill(rows, cols)
    assert block.dtype == np.complex128
    assert block.flags.c_contiguous
    assert block.flags.owndata
    np.testing.assert_allclose(block, whole[rows, cols], rtol=1e-14)


def test_blocks_may_be_filled_by_several_threads_at_once() -> None:
    problem = SphereProblem(3)
    panels = [slice(start, start + 160) for start in range(0, problem.n, 160)]
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda panel: problem.fill(panel, WHOLE), panels))
    whole = problem.fill(WHOLE, WHOLE)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-14)


def test_fill_needs_little_memory_beyond_its_block() -> None:
    problem = SphereProblem(3)
    tracemalloc.start()
    block = problem.fill(WHOLE, WHOLE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * block.nbytes


def test_matrix_has_the_eigenvalues_of_the_operator() -> None:
    problem = SphereProblem(3)
    matrix = problem.fill(WHOLE, WHOLE)
    k, eta = problem.k, problem.eta
    for order in range(6):
        harmonic = eval_legendre(order, problem.points @ DIRECTION)
        hankel = spherical_jn(order, k) + 1j * spherical_yn(order, k)
        inside = k * spherical_jn(order, k, derivative=True)
        eigenvalue = 1j * k * hankel * (inside - 1j * eta * spherical_jn(order, k))
        wrong = np.linalg.norm(matrix @ harmonic - eigenvalue * harmonic)
        assert wrong < 5e-3 * abs(eigenvalue) * np.linalg.norm(harmonic)


def test_errors_fall_with_the_square_of_the_triangle_size(
    solved: list[tuple[SphereProblem, ComplexArray]],
) -> None:
    surface = [problem.surface_error(q) for problem, q in solved]
    far = [problem.far_field_error(q) for problem, q in solved]
    # The triangle size halves from level to level: an order p divides by 2**p.
    for errors in (surface, far):
        orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
        assert orders.min() > 1.8
    assert surface[-1] < 5e-3
    assert far[-1] < 2.5e-3


def test_errors_do_not_depend_on_the_direction() -> None:
    problem = SphereProblem(2, direction=3.0 * DIRECTION)
    q = solve(problem)
    assert abs(problem.direction @ problem.transverse) < 1e-15
    assert problem.surface_error(q) < 0.02
    assert problem.far_field_error(q) < 0.015


@pytest.mark.parametrize("k", [DIRICHLET, NEUMANN])
def test_coupled_equation_survives_interior_resonances(k: float) -> None:
    problem = SphereProblem(2, k)
    matrix = problem.fill(WHOLE, WHOLE)
    q = dense_solve(matrix, problem.rhs())
    assert problem.surface_error(q) < 0.01
    assert problem.far_field_error(q) < 0.005
    assert np.linalg.cond(matrix) < 5


def test_uncoupled_equations_fail_at_interior_resonances() -> None:
    uncoupled = SphereProblem(2, NEUMANN, eta=0.0)
    assert uncoupled.surface_error(solve(uncoupled)) > 0.1
    # The matrix is linear in eta, so a difference isolates the single layer.
    without = SphereProblem(2, DIRICHLET, eta=0.0)
    coupled = SphereProblem(2, DIRICHLET, eta=1.0)
    layer = 1j * (coupled.fill(WHOLE, WHOLE) - without.fill(WHOLE, WHOLE))
    incident = series.incident_field(DIRICHLET, without.points, without.direction)
    assert without.surface_error(dense_solve(layer, incident)) > 0.1


@pytest.mark.parametrize(
    ("radius", "tolerance"), [(1.0, 0.03), (1.02, 0.02), (1.3, 2e-3), (4.0, 1e-3)]
)
def test_scattered_field_follows_the_series(
    solved: list[tuple[SphereProblem, ComplexArray]], radius: float, tolerance: float
) -> None:
    problem, q = solved[-1]
    # Some points lie above collocation points, where a naive sum would divide by zero.
    points = np.concatenate([random_points(300, radius), radius * problem.points[::16]])
    exact = series.scattered_field(problem.k, points, problem.direction)
    wrong = problem.scattered_field(q, points) - exact
    assert math.sqrt(np.mean(np.abs(wrong) ** 2)) < tolerance


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        SphereProblem(-1)
    with pytest.raises(ValueError, match="wave number"):
        SphereProblem(0, -1.0)
    with pytest.raises(ValueError, match="direction"):
        SphereProblem(0, direction=(0.0, 0.0, 0.0))


def test_picture_is_written(
    solved: list[tuple[SphereProblem, ComplexArray]], tmp_path: Path
) -> None:
    problem, q = solved[1]
    path = tmp_path / "field.png"
    draw_field(problem, q, path, resolution=24)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    scattered, total = plane_fields(problem, q, 24)
    assert np.isnan(total[12, 12])
    assert np.isnan(scattered[12, 12])
    assert np.isfinite(total[0]).all()
    np.testing.assert_allclose(abs(total[0] - scattered[0]), 1, rtol=1e-12)  # a plane wave
    with pytest.raises(ValueError, match="resolution"):
        plane_fields(problem, q, 1000)
