"""Method of moments from a user's own ``fill``: a plane wave meets a conducting cylinder.

    python examples/cylinder.py [DIRECTORY]

Pulse basis, point matching, electric field along the axis, time factor e^(+jwt) (R. F. Harrington,
*Field Computation by Moment Methods*, section 3-3). The surface current is compared with the
analytic series. If the script is stopped and started again, it resumes.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.special import hankel2

import outcore as oc
from outcore.errors import IncompleteError, NotFoundError

n = 1200  # unknowns; a real problem differs in this and in the geometry only
ka = 20.6  # wave number times radius, away from the zeros of the Bessel functions
eta = 376.73  # ohms
angles = 24  # directions of incidence, each a right-hand side

where = Path(sys.argv[1] if len(sys.argv) > 1 else "cylinder")
phi = 2 * np.pi * np.arange(n) / n
points = np.exp(1j * phi)  # match points on the unit circle, as complex numbers
width = 2 * np.pi / n


def fill(rows, cols):
    """Return the impedances of the match points `rows` and the strips `cols`, two slices."""
    distance = abs(points[rows, None] - points[None, cols])
    itself = np.arange(n)[rows, None] == np.arange(n)[None, cols]
    Z = hankel2(0, np.where(itself, 1, ka * distance))
    Z[itself] = 1 - 2j / np.pi * np.log(np.exp(np.euler_gamma) * ka * width / (4 * np.e))
    return ka * eta / 4 * width * Z


def matrix(path):
    """Open the matrix on disk if it is complete; otherwise assemble or resume it."""
    try:
        return oc.open_array(path)
    except (NotFoundError, IncompleteError):
        return oc.create_array(path, (n, n), "c16", order="F", fill=fill, threads=2, memory="64 MB")


def series(phi):
    """Return the surface current for a wave along x, by separation of variables."""
    m = np.arange(-60, 61)
    terms = (-1j) ** m / hankel2(m, ka)
    return 2 / (np.pi * ka * eta) * np.exp(1j * np.outer(phi, m)) @ terms


A = matrix(where / "Z")
print(oc.plan("solve", n=n, dtype=A.dtype, memory="8 MB", path=where, rhs=angles))

incidence = 2 * np.pi * np.arange(angles) / angles
B = np.exp(-1j * ka * (points[:, None] * np.exp(-1j * incidence)).real)
J, report = oc.linalg.solve(A, B, memory="8 MB")
print(report)

exact = np.stack([series(phi - angle) for angle in incidence], axis=1)
error = np.linalg.norm(J - exact) / np.linalg.norm(exact)
print(f"{angles} surface currents, relative error against the series: {error:.1e}")
assert error < 0.01
