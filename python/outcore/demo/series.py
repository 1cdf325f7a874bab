r"""Exact partial-wave series for scattering by the sound-soft unit sphere.

A plane wave :math:`u^i = e^{ikz}`, with :math:`z = x \cdot d` the coordinate
along the incidence direction :math:`d` and the time factor
:math:`e^{-i\omega t}` left out, meets a sphere of radius 1 on which the total
field vanishes.  Outgoing waves behave like :math:`e^{ikr}/r`, so the radial
functions are :math:`h_l = h_l^{(1)} = j_l + i y_l`.  With
:math:`\mu = \cos\theta = x \cdot d / |x|`,

.. math::

    u^i &= \sum_l (2l+1)\, i^l\, j_l(kr)\, P_l(\mu), \\
    u^s &= -\sum_l (2l+1)\, i^l\, \frac{j_l(k)}{h_l(k)}\, h_l(kr)\, P_l(\mu).

The Wronskian :math:`j_l h_l' - j_l' h_l = i / x^2` turns the normal
derivative of the total field on the sphere into

.. math::

    q = \partial_r (u^i + u^s)
    = -\frac{i}{k} \sum_l (2l+1)\, i^l\, \frac{P_l(\mu)}{h_l(k)},

and :math:`h_l(x) \sim (-i)^{l+1} e^{ix}/x` gives the far-field pattern
:math:`f`, defined by :math:`u^s \sim f(\theta)\, e^{ikr}/r`,

.. math:: f(\theta) = \frac{i}{k} \sum_l (2l+1)\, \frac{j_l(k)}{h_l(k)}\, P_l(\mu).

Lengths are in units of the sphere's radius and wave numbers in its inverse.

References
----------
.. [1] D. Colton and R. Kress, *Inverse Acoustic and Electromagnetic
   Scattering Theory*, Springer, chapters 2 and 3.
.. [2] W. J. Wiscombe, "Improved Mie scattering algorithms", Applied Optics
   19 (1980) 1505-1509, for how the number of terms grows with k.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import spherical_jn, spherical_yn

ComplexArray = NDArray[np.complex128]
RealArray = NDArray[np.float64]


def term_count(k: float) -> int:
    """Return how many partial waves reach double precision.

    The terms of all three series decay faster than exponentially once the order exceeds ``k``, over
    a transition zone of width ``k**(1/3)``. Wiscombe's ``k + 4 k**(1/3) + 2`` suits optical work;
    the wider zone used here leaves out only terms below rounding.

    Parameters
    ----------
    k : float
        Wave number times radius, positive.

    Returns
    -------
    int
        Number of terms; orders ``0`` to ``term_count(k) - 1`` are summed.

    Raises
    ------
    ValueError
        If `k` is not a positive finite number.
    """
    if not (np.isfinite(k) and k > 0):
        raise ValueError(f"wave number must be positive and finite, got {k!r}")
    return int(np.ceil(k + 9.0 * np.cbrt(k) + 10.0))


def surface_derivative(k: float, cosines: ArrayLike) -> ComplexArray:
    """Return the normal derivative of the total field on the sphere.

    Parameters
    ----------
    k : float
        Wave number (inverse radii).
    cosines : array_like of float
        Cosine of the angle from the incidence direction, any shape.

    Returns
    -------
    ndarray of complex128
        ``q = d(u_inc + u_scat)/dr`` at r = 1, in the shape of `cosines`, per
        radius for an incident wave of unit amplitude.
    """
    mu = np.asarray(cosines, dtype=np.float64)
    total = np.zeros(mu.shape, dtype=np.complex128)
    for order, legendre in enumerate(_legendre(mu, term_count(k))):
        total += (2 * order + 1) * _power_of_i(order) / _hankel(order, k) * legendre
    return -1j / k * total


def far_field(k: float, angles: ArrayLike) -> ComplexArray:
    """Return the far-field pattern ``f``, where ``u_scat ~ f exp(ikr)/r``.

    Parameters
    ----------
    k : float
        Wave number (inverse radii).
    angles : array_like of float
        Scattering angle from the incidence direction in radians, any shape;
        0 is straight ahead.

    Returns
    -------
    ndarray of complex128
        Pattern in the shape of `angles`, in radii.
    """
    mu = np.cos(np.asarray(angles, dtype=np.float64))
    total = np.zeros(mu.shape, dtype=np.complex128)
    for order, legendre in enumerate(_legendre(mu, term_count(k))):
        total += (2 * order + 1) * _reflection(order, k) * legendre
    return 1j / k * total


def incident_field(k: float, points: ArrayLike, direction: ArrayLike) -> ComplexArray:
    """Return the plane wave ``exp(i k x . d)``.

    Parameters
    ----------
    k : float
        Wave number (inverse radii).
    points : (..., 3) array_like of float
        Positions in radii.
    direction : (3,) array_like of float
        Unit vector of propagation.

    Returns
    -------
    (...) ndarray of complex128
        Incident field.
    """
    phase = k * (np.asarray(points, dtype=np.float64) @ np.asarray(direction, dtype=np.float64))
    return np.asarray(np.exp(1j * phase), dtype=np.complex128)


def scattered_field(k: float, points: ArrayLike, direction: ArrayLike) -> ComplexArray:
    """Return the scattered field at points on or outside the sphere.

    Parameters
    ----------
    k : float
        Wave number (inverse radii).
    points : (..., 3) array_like of float
        Positions in radii, each at least 1 from the origin.
    direction : (3,) array_like of float
        Unit vector of propagation of the incident wave.

    Returns
    -------
    (...) ndarray of complex128
        Scattered field for an incident wave of unit amplitude.

    Raises
    ------
    ValueError
        If a point lies inside the sphere, where the series does not hold.
    """
    where = np.asarray(points, dtype=np.float64)
    radius = np.linalg.norm(where, axis=-1)
    # Points meant to lie on the sphere are normalised vectors: allow rounding.
    if np.any(radius < 1.0 - 1e-12):
        raise ValueError("the series holds only on and outside the sphere of radius 1")
    mu = np.clip(where @ np.asarray(direction, dtype=np.float64) / radius, -1.0, 1.0)
    total = np.zeros(radius.shape, dtype=np.complex128)
    for order, legendre in enumerate(_legendre(mu, term_count(k))):
        factor = (2 * order + 1) * _power_of_i(order) * _reflection(order, k)
        wave = spherical_jn(order, k * radius) + 1j * spherical_yn(order, k * radius)
        total -= factor * wave * legendre
    return total


def _hankel(order: int, argument: float) -> complex:
    """Return the spherical Hankel function of the first kind."""
    return complex(spherical_jn(order, argument), spherical_yn(order, argument))


def _reflection(order: int, k: float) -> complex:
    """Return ``j_l(k) / h_l(k)``, the reflected share of a partial wave."""
    return float(spherical_jn(order, k)) / _hankel(order, k)


def _power_of_i(order: int) -> complex:
    """Return ``i**order`` exactly; a floating-point power would round."""
    return (1 + 0j, 1j, -1 + 0j, -1j)[order % 4]


def _legendre(mu: RealArray, count: int) -> Iterator[RealArray]:
    """Yield the Legendre polynomials of order 0 to ``count - 1`` at `mu`.

    Two arrays are kept instead of a table, which saves memory with the many points of a picture.
    """
    before = np.ones_like(mu)
    yield before
    current = mu.copy()
    for order in range(1, count):
        yield current
        before, current = (
            current,
            ((2 * order + 1) * mu * current - order * before) / (order + 1),
        )
