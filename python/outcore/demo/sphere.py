r"""Boundary element matrix for a sound-soft unit sphere, block by block.

A plane wave :math:`u^i = e^{ik\,d\cdot x}` (time factor :math:`e^{-i\omega t}`)
meets the sphere, on which the total field :math:`u = u^i + u^s` vanishes.  The
unknown is :math:`q = \partial u/\partial n`, normal outwards.  With
:math:`G = e^{ikr} / (4 \pi r)` and :math:`r = |x - y|`, Green's formula says
:math:`u^s(x) = -\int G(x, y)\, q(y)\, dS(y)`.  On the sphere its value and
normal derivative give two equations, :math:`S q = u^i` and
:math:`(\tfrac12 I + K')\, q = \partial_n u^i`, with kernels :math:`G` and
:math:`\partial G / \partial n(x)`.  The first fails where the ball has a Dirichlet
eigenvalue (:math:`k = \pi`), the second where it has a Neumann eigenvalue
(:math:`k = 4.4934`); combined with a real :math:`\eta > 0` they are uniquely
solvable for every k [1]_ [2]_:

.. math:: (\tfrac12 I + K' - i \eta S)\, q = \partial_n u^i - i \eta\, u^i .

This operator multiplies the spherical harmonics of order :math:`l` by
:math:`i k\, h_l(k)\, (k\, j_l'(k) - i \eta\, j_l(k)) \ne 0`.  On the unit sphere
:math:`n(x) \cdot (x - y) = r^2 / 2`, so its kernel depends on the chord alone,

.. math:: M(r) = \frac{e^{ikr}}{4 \pi r} \left( \frac{ikr - 1}{2} - i \eta \right).

The sphere itself, not a polyhedron, is cut into geodesic triangles, with one
unknown per triangle at :math:`x_j`, the direction of the triangle's vector
centroid, and the exact area :math:`w_j` as weight.  Off the diagonal the entry is
:math:`M(r_{ij}) w_j`.  The singularity is subtracted within a smooth window
:math:`\chi(r) = (1 - r^2/R^2)^3`, :math:`r < R`, which sets the diagonal:

.. math::

    \int M q \approx \sum_{j \ne i} M(r_{ij}) w_j q_j
    + q_i \Big( \int M \chi \, dS - \sum_{j \ne i} M(r_{ij}) \chi(r_{ij}) w_j \Big).

In polar coordinates about :math:`x_i` the area element is :math:`r\,dr\,d\varphi`, so
Gauss-Legendre points give the integral in the brackets to rounding.  :math:`R`
shrinks like the square root of the triangle size: local, yet well resolved.
The errors fall like the square of the triangle size.

References
----------
.. [1] A. J. Burton and G. F. Miller, "The application of integral equation
   methods to ... exterior boundary-value problems", Proc. R. Soc. A 323 (1971).
.. [2] D. Colton and R. Kress, *Inverse Acoustic and Electromagnetic Scattering
   Theory*, Springer, chapter 3.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outcore.demo import series

ComplexArray = NDArray[np.complex128]
RealArray = NDArray[np.float64]

# Entries per strip, whose scratch arrays then fit in a core's private cache.
_STRIP: Final = 1 << 14
_TINY: Final = np.finfo(np.float64).tiny


class SphereProblem:
    """Combined-field equation on the unit sphere, one unknown per triangle.

    Parameters
    ----------
    level : int
        Number of subdivisions of the icosahedron, at least 0; ``n = 20 * 4**level``.
    k : float, optional
        Wave number in inverse radii; the default gives 20 unknowns per wavelength at level 4.
    eta : float, optional
        Coupling parameter in inverse radii, by default `k`.  Zero leaves the
        plain derivative equation, which fails at some wave numbers.
    direction : (3,) array_like of float, optional
        Direction in which the incident wave travels, of any length.

    Attributes
    ----------
    n : int
        Number of unknowns.
    triangles : (n, 3, 3) ndarray of float64
        Corners of each triangle on the sphere, anticlockwise from outside; triangles with close
        numbers are close in space.
    points : (n, 3) ndarray of float64
        Collocation points, also the outward normals.
    areas : (n,) ndarray of float64
        Areas of the geodesic triangles; they sum to ``4 * pi``.
    direction, transverse : (3,) ndarray of float64
        Unit vectors of incidence and across it, the plane of scattering angles.
    """

    def __init__(
        self,
        level: int,
        k: float = 6.0,
        *,
        eta: float | None = None,
        direction: ArrayLike = (1.0, 0.0, 0.0),
    ) -> None:
        if not (math.isfinite(k) and k > 0):
            raise ValueError(f"wave number must be positive and finite, got {k!r}")
        along = np.array(direction, dtype=np.float64)
        if along.shape != (3,) or not 0 < np.linalg.norm(along) < math.inf:
            raise ValueError("direction must be three finite numbers, not all zero")
        self.level = level
        self.k = float(k)
        self.eta = self.k if eta is None else float(eta)
        self.triangles = _geodesic_triangles(level)
        self.n = len(self.triangles)
        self.points, self.areas = _centroids_and_areas(self.triangles)
        self.direction = _normalised(along)
        # The axis least aligned with the wave avoids cancellation.
        axis = np.eye(3)[np.argmin(np.abs(along))]
        self.transverse = _normalised(np.cross(axis, along))
        self._reach = min(2.0, 2.5 * (4 * math.pi / self.n) ** 0.25)
        self._coordinates = np.ascontiguousarray(self.points.T)
        self._diagonal = self._diagonal_entries()

    def fill(self, rows: slice, cols: slice) -> ComplexArray:
        """Return one block of the matrix.

        Scratch memory is that of a few thousand entries or a few rows. The method changes no state,
        so several threads may call it concurrently.

        Parameters
        ----------
        rows, cols : slice
            Collocation points and triangles of the block; any slices of ``range(n)``.

        Returns
        -------
        (len(rows), len(cols)) ndarray of complex128
            The block, C-contiguous and freshly allocated.
        """
        x = self._coordinates[:, rows]
        y = self._coordinates[:, cols]
        block = np.empty((x.shape[1], y.shape[1]), dtype=np.complex128)
        height = max(1, _STRIP // max(1, y.shape[1]))
        for start in range(0, x.shape[1], height):
            strip = slice(start, start + height)
            chord = np.sqrt(np.maximum(_squared_distances(x[:, strip], y), _TINY))
            self._weighted_kernel(chord, self.areas[cols], block[strip])
        numbers = np.arange(self.n)
        diagonal, here, there = np.intersect1d(
            numbers[rows], numbers[cols], assume_unique=True, return_indices=True
        )
        block[here, there] = self._diagonal[diagonal]
        return block

    def rhs(self) -> ComplexArray:
        """Return the right-hand side ``du_inc/dn - i eta u_inc``.

        Returns
        -------
        (n,) ndarray of complex128
            Values at the collocation points, in inverse radii.
        """
        factor = 1j * (self.k * (self.points @ self.direction) - self.eta)
        return factor * series.incident_field(self.k, self.points, self.direction)

    def surface_error(self, q: ComplexArray) -> float:
        """Return the relative L2 error of `q` over the sphere.

        Parameters
        ----------
        q : (n,) ndarray of complex128
            Computed normal derivative at the collocation points.

        Returns
        -------
        float
            Area-weighted error against the series, 0 for a perfect match.
        """
        exact = series.surface_derivative(self.k, self.points @ self.direction)
        wrong = np.sum(self.areas * np.abs(q - exact) ** 2)
        return math.sqrt(wrong / np.sum(self.areas * np.abs(exact) ** 2))

    def far_field(self, q: ComplexArray, angles: ArrayLike) -> ComplexArray:
        r"""Return the far-field pattern of a computed solution.

        .. math:: f(\hat x) = -\frac{1}{4 \pi} \int e^{-ik \hat x \cdot y} q(y)\, dS(y)

        Parameters
        ----------
        q : (n,) ndarray of complex128
            Normal derivative at the collocation points.
        angles : (m,) array_like of float
            Angles from `direction` towards `transverse`, in radians.

        Returns
        -------
        (m,) ndarray of complex128
            Pattern in radii, where ``u_scat ~ f exp(ikr) / r``.
        """
        theta = np.asarray(angles, dtype=np.float64)
        plane = np.stack([self.direction, self.transverse])
        towards = np.stack([np.cos(theta), np.sin(theta)], axis=1) @ plane
        charge = q * self.areas / (-4 * math.pi)
        pattern = np.empty(theta.shape, dtype=np.complex128)
        for start in range(0, len(theta), 16):
            part = slice(start, start + 16)
            wave = np.exp(-1j * self.k * (towards[part] @ self._coordinates))
            pattern[part] = wave @ charge
        return pattern

    def far_field_error(self, q: ComplexArray, angles: ArrayLike | None = None) -> float:
        """Return the relative L2 error of the far-field pattern over angles.

        Parameters
        ----------
        q : (n,) ndarray of complex128
            Normal derivative at the collocation points.
        angles : (m,) array_like of float, optional
            Angles in radians; by default 0 to pi in steps of a degree.

        Returns
        -------
        float
            Error against the series, 0 for a perfect match.
        """
        theta = np.linspace(0, math.pi, 181) if angles is None else np.asarray(angles)
        exact = series.far_field(self.k, theta)
        wrong = self.far_field(q, theta) - exact
        return float(np.linalg.norm(wrong) / np.linalg.norm(exact))

    def scattered_field(self, q: ComplexArray, points: ArrayLike) -> ComplexArray:
        r"""Return the scattered field of a computed solution.

        Close to the sphere the kernel is nearly singular: `q` at the nearest
        collocation point is subtracted within the window used by the matrix.
        The area element about the foot of :math:`x` on the sphere is
        :math:`s\,ds\,d\varphi / |x|` in terms of the distance :math:`s` from `x`.

        Parameters
        ----------
        q : (n,) ndarray of complex128
            Normal derivative at the collocation points.
        points : (m, 3) array_like of float
            Positions on or outside the sphere, in radii.

        Returns
        -------
        (m,) ndarray of complex128
            Scattered field for an incident wave of unit amplitude.
        """
        where = np.asarray(points, dtype=np.float64)
        field = np.empty(len(where), dtype=np.complex128)
        charge = q * self.areas
        height = max(1, 16 * _STRIP // self.n)
        for start in range(0, len(where), height):
            part = slice(start, start + height)
            radius = np.linalg.norm(where[part], axis=1)
            squared = _squared_distances(where[part].T, self._coordinates)
            nearest = q[np.argmin(squared, axis=1)]
            distance = np.sqrt(np.maximum(squared, _TINY))
            green = np.exp(1j * self.k * distance) / distance
            foot = _squared_distances(where[part].T / radius, self._coordinates)
            chi = _window(foot / self._reach**2)
            # Grouped so that a point on a collocation point multiplies by zero.
            smooth = charge - chi * self.areas * nearest[:, np.newaxis]
            field[part] = np.sum(green * smooth, axis=1) / (-4 * math.pi)
            field[part] -= nearest * self._window_potential(radius)
        return field

    def _weighted_kernel(self, chord: RealArray, weights: RealArray, out: ComplexArray) -> None:
        """Write ``M(chord) * weights`` to `out`; `chord` is used as scratch.

        Real arithmetic is faster than complex exponentials.
        """
        real = 1.0 / chord
        imaginary = real * -self.eta
        imaginary += 0.5 * self.k
        real *= -0.5
        chord *= self.k
        cosine = np.cos(chord)
        sine = np.sin(chord, out=chord)
        scaled = weights / (4 * math.pi)
        np.multiply(cosine * real - sine * imaginary, scaled, out=out.real)
        np.multiply(cosine * imaginary + sine * real, scaled, out=out.imag)

    def _diagonal_entries(self) -> ComplexArray:
        """Return the (n,) diagonal: one half plus the local correction.

        Consecutive rows are close, so only columns near the group contribute.
        """
        node, weight = np.polynomial.legendre.leggauss(32)
        chord = 0.5 * self._reach * (node + 1.0)
        ring = math.pi * self._reach * weight * chord
        ring *= _window((chord / self._reach) ** 2)
        kernel = np.empty(chord.shape, dtype=np.complex128)
        self._weighted_kernel(chord, ring, kernel)
        diagonal = np.full(self.n, 0.5 + kernel.sum(), dtype=np.complex128)
        for start in range(0, self.n, 64):
            rows = np.arange(start, min(start + 64, self.n))
            x = self._coordinates[:, rows]
            middle = x.mean(axis=1, keepdims=True)
            limit = self._reach + math.sqrt(_squared_distances(x, middle).max())
            away = _squared_distances(middle, self._coordinates)[0]
            near = np.flatnonzero(away < limit**2)
            squared = _squared_distances(x, self._coordinates[:, near])
            chi = _window(squared / self._reach**2)
            # The sum excludes j = i, whose distance may have any non-zero value.
            own = rows[:, np.newaxis] == near
            chi[own] = 0.0
            squared[own] = 1.0
            entries = np.empty(squared.shape, dtype=np.complex128)
            self._weighted_kernel(np.sqrt(squared), self.areas[near], entries)
            diagonal[rows] -= np.sum(entries * chi, axis=1)
        return diagonal

    def _window_potential(self, radius: RealArray) -> ComplexArray:
        """Return (m,) potentials of the window from `radius` above its middle."""
        node, weight = np.polynomial.legendre.leggauss(32)
        rho = radius[:, np.newaxis]
        height = np.abs(rho - 1.0)
        half = 0.5 * (np.sqrt(height**2 + rho * self._reach**2) - height)
        distance = height + half * (node + 1.0)
        chi = _window((distance**2 - height**2) / (rho * self._reach**2))
        wave = np.exp(1j * self.k * distance)
        potential: ComplexArray = (wave * chi * half / (2.0 * rho)) @ weight
        return potential


def _geodesic_triangles(level: int) -> RealArray:
    """Return the (20 * 4**level, 3, 3) corners of a subdivided icosahedron.

    They run anticlockwise; the four children of a triangle are consecutive.
    """
    if level < 0:
        raise ValueError(f"level must be at least 0, got {level}")
    golden = (1 + math.sqrt(5)) / 2
    first = np.array([(0, s, t * golden) for s in (-1, 1) for t in (-1, 1)])
    corners = np.concatenate([np.roll(first, shift, axis=1) for shift in range(3)])
    # The faces are the triples of corners at the shortest distance, 2, from
    # each other; their determinant is positive when seen anticlockwise.
    touching = np.isclose(_squared_distances(corners.T, corners.T), 4.0)
    faces = [
        (a, b, c) if np.linalg.det(corners[[a, b, c]]) > 0 else (a, c, b)
        for a, b, c in itertools.combinations(range(12), 3)
        if touching[a, b] and touching[b, c] and touching[a, c]
    ]
    triangles = _normalised(corners[np.array(faces)])
    for _ in range(level):
        a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
        ab, bc, ca = _normalised(a + b), _normalised(b + c), _normalised(c + a)
        children = [a, ab, ca, ab, b, bc, ab, bc, ca, ca, bc, c]
        triangles = np.stack(children, axis=1).reshape(-1, 3, 3)
    return triangles


def _centroids_and_areas(triangles: RealArray) -> tuple[RealArray, RealArray]:
    """Return (n, 3) unit centroid directions and (n,) areas of geodesic triangles.

    The integral of the position over a geodesic triangle is half the sum, over
    its edges, of the arc length times the unit normal of the edge's plane.
    """
    following = np.roll(triangles, -1, axis=1)
    chord = np.linalg.norm(following - triangles, axis=2, keepdims=True)
    arcs = np.arcsin(0.5 * chord) * _normalised(np.cross(triangles, following))
    volume = np.linalg.det(triangles)
    cosines = np.sum(triangles * following, axis=(1, 2))
    areas: RealArray = 2.0 * np.arctan2(volume, 1.0 + cosines)
    return _normalised(np.sum(arcs, axis=1)), areas


def _normalised(vectors: RealArray) -> RealArray:
    """Return the vectors along the last axis scaled to length 1."""
    lengths: RealArray = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / lengths


def _squared_distances(x: RealArray, y: RealArray) -> RealArray:
    """Return the (p, q) squared distances between columns of (3, p) and (3, q).

    Unlike a matrix product, differences do not cancel between near points.
    """
    total: RealArray = np.subtract.outer(x[0], y[0])
    total *= total
    for u, v in zip(x[1:], y[1:], strict=True):
        part = np.subtract.outer(u, v)
        part *= part
        total += part
    return total


def _window(squared: RealArray) -> RealArray:
    """Return the window ``(1 - t**2)**3`` for ``t**2 = squared``, 0 beyond 1."""
    inside = np.maximum(1.0 - squared, 0.0)
    return inside * inside * inside
