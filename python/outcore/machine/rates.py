"""Measured rates of the disk and of matrix products, stored for planning.

They are stored in ``$XDG_CACHE_HOME/outcore/rates.json`` (``~/.cache`` if that is unset), by host,
file system or pool, BLAS kernels and number of threads. If the file is lost, outcore measures
again. For each rate the file has the best value ever measured, so a busy machine cannot make later
plans too slow.
"""

import contextlib
import datetime
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import imported
from outcore.blas import blas_choice
from outcore.errors import OutcoreError
from outcore.layout.disk_reads import DiskReads
from outcore.machine import machine, processor
from outcore.machine.disk_rates import disk_rates
from outcore.machine.timing import median_rate
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, as_path

DTYPES = ("float32", "float64", "complex64", "complex128")

REQUEST_S = 25e-6
"""Seconds for a short read if none were measured: the value of a virtual disk on flash memory."""

_FORMAT = 2
"""Format 1 measured writes over recently written blocks, which caches below the disk answer."""

_QUICK_S = 1.5


@dataclass(frozen=True)
class Rates:
    """Rates of one machine, disk and BLAS.

    Attributes
    ----------
    read_bytes_s, write_bytes_s : float
        Bytes per second that outcore itself reads and writes in `directory`, in tiles of 4 MiB,
        with direct I/O if the file system supports it. Writing includes the sync.
    gemm_flops_s : dict
        Real floating-point operations per second of matrix products with the shapes of LU, by name
        of the element type. A complex multiplication and addition counts as 8 real operations. So a
        complex product of m x k by k x n has 8 m n k of them, a real one 2 m n k.
    cores : int
        Processors that the process may use.
    threads : int
        Threads of the BLAS.
    kernels : str
        The BLAS, its version and its kernels.
    measured_at : str
        Date and time, ISO 8601, UTC.
    directory : str
        Directory in which the disk was measured.
    request_s : float
        Seconds for each of many page reads at random places.
    gap_bytes, block_bytes : int
        Granularity of reads: the largest gap that a read includes, and the size of a block.
    why_nominal : str
        Reason for nominal rates, if none could be measured; otherwise empty.
    """

    read_bytes_s: float
    write_bytes_s: float
    gemm_flops_s: dict[str, float]
    cores: int
    threads: int
    kernels: str
    measured_at: str
    directory: str
    request_s: float = REQUEST_S
    gap_bytes: int = DiskReads().gap_bytes
    block_bytes: int = DiskReads().block_bytes
    why_nominal: str = ""

    @property
    def reads(self) -> DiskReads:
        """Granularity of reads."""
        return DiskReads(self.gap_bytes, self.block_bytes)

    @property
    def notes(self) -> list[str]:
        """Notes for plans with these rates."""
        if not self.why_nominal:
            return []
        return [f"times use nominal rates, because none could be measured: {self.why_nominal}"]


NOMINAL = Rates(
    read_bytes_s=1e9,
    write_bytes_s=5e8,
    gemm_flops_s={"float32": 2e11, "float64": 1e11, "complex64": 2e11, "complex128": 1e11},
    cores=1,
    threads=1,
    kernels="",
    measured_at="",
    directory="",
)
"""Rates for plans that must not spend memory and time on a measurement."""


@dataclass(frozen=True)
class Measurement:
    """A measurement: its rates, and the stored rates.

    Attributes
    ----------
    now
        The rates of this measurement.
    kept
        For each rate, the better of the new and the stored value.
    use
        Use of the processors by other programs during the measurement.
    """

    now: Rates
    kept: Rates
    use: processor.Use


def measure(directory: PathLike, seconds: float = 3.0) -> Rates:
    """Measure the rates, and store the better of the new and the stored value of each.

    Parameters
    ----------
    directory
        Directory on the disk, or in the pool, to measure, with at most 256 MiB of temporary files.
    seconds
        Approximate duration.

    Returns
    -------
    Rates
        The stored rates after the call. Measured rates are medians of three passes each.

    Raises
    ------
    DiskFullError
        If the disk has too little free space for the files.
    ReadOnlyError
        If the directory is not writable.
    """
    return measured(directory, seconds).kept


def measured(directory: PathLike, seconds: float = 3.0) -> Measurement:
    """Measure like `measure`; return also the new rates and the use of the processors."""
    with processor.watched() as use:
        now = _measured_now(directory, seconds)
    before = stored(directory)
    kept = now if before is None else _better(before, now)
    _keep(kept)
    return Measurement(now, kept, *use)


def _better(one: Rates, other: Rates) -> Rates:
    """Return the better value of each rate; all other fields are those of `other`."""
    gemm = {name: max(rate, other.gemm_flops_s[name]) for name, rate in one.gemm_flops_s.items()}
    return replace(
        other,
        read_bytes_s=max(one.read_bytes_s, other.read_bytes_s),
        write_bytes_s=max(one.write_bytes_s, other.write_bytes_s),
        request_s=min(one.request_s, other.request_s),
        gemm_flops_s=gemm,
    )


def _measured_now(directory: PathLike, seconds: float) -> Rates:
    where = _nearest(directory)
    disk = disk_rates(where, seconds / 3)
    share = seconds * 2 / 3 / len(DTYPES)
    kernels, threads = blas_choice.in_use()
    return Rates(
        read_bytes_s=disk.read_bytes_s,
        write_bytes_s=disk.write_bytes_s,
        gemm_flops_s={name: gemm_rate(name, share) for name in DTYPES},
        cores=machine.usable_cores(),
        threads=threads,
        kernels=kernels,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        directory=str(where),
        request_s=disk.request_s,
        gap_bytes=disk.reads.gap_bytes,
        block_bytes=disk.reads.block_bytes,
    )


def stored(directory: PathLike) -> Rates | None:
    """Return the rates stored for this machine, the file system of `directory` and this BLAS."""
    return _parse(_read_cache().get(_key(_nearest(directory), *blas_choice.in_use())))


def stored_or_measured(directory: PathLike) -> Rates:
    """Return the stored rates; if there are none, measure for about two seconds.

    If the directory is not writable, the rates are nominal, with the reason.
    """
    if kept := stored(directory):
        return kept
    try:
        return measure(directory, _QUICK_S)
    except (OutcoreError, OSError) as error:
        return replace(NOMINAL, directory=str(directory), why_nominal=str(error))


def _nearest(directory: PathLike) -> AnyPath:
    """Return a directory, or its nearest existing parent."""
    path = as_path(directory)
    if isinstance(path, PoolPath):
        return next(each for each in (path, *path.parents) if each.is_dir())
    return machine.nearest_directory(path)


def gemm_rate(dtype: str, seconds: float) -> float:
    """Measure real operations per second of LU's main update: a row tile of L times a panel."""
    m, n, k = 2048, 1024, 128 if dtype == "complex128" else 256
    from outcore.blas import lapack  # imported here because SciPy is slow to import

    kernels = lapack.kernels(dtype)
    rng = imported("numpy.random").default_rng(1)

    def matrix(rows: int, columns: int) -> npt.NDArray[Any]:
        return np.asfortranarray(rng.uniform(-1, 1, (rows, columns)).astype(dtype))

    a, b, c = matrix(m, k), matrix(k, n), matrix(m, n)

    def multiply(count: int) -> None:
        for _ in range(count):
            kernels.gemm(a, b, c, -1.0, 1.0)

    flops = (8 if c.dtype.kind == "c" else 2) * m * n * k
    multiply(1)  # the first call starts the BLAS's threads
    return median_rate(multiply, seconds) * flops


def _cache_file() -> Path:
    # A relative XDG_CACHE_HOME must be ignored (XDG base directory specification 0.8).
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path("~/.cache").expanduser()
    return base / "outcore" / "rates.json"


def _key(directory: AnyPath, kernels: str, threads: int) -> str:
    if isinstance(directory, PoolPath):
        disk = f"pool {directory.root.core.id}"
    else:
        disk = f"device {directory.stat().st_dev}"
    return f"{socket.gethostname()}, {disk}, {kernels}, {threads} threads"


def _read_cache() -> dict[str, Any]:
    try:
        document = json.loads(_cache_file().read_text())
        entries = document["rates"] if document["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _parse(entry: Any) -> Rates | None:
    try:
        numbers = {name: float(entry["gemm_flops_s"][name]) for name in DTYPES}
        found = Rates(
            read_bytes_s=float(entry["read_bytes_s"]),
            write_bytes_s=float(entry["write_bytes_s"]),
            gemm_flops_s=numbers,
            cores=int(entry["cores"]),
            threads=int(entry["threads"]),
            kernels=str(entry["kernels"]),
            measured_at=str(entry["measured_at"]),
            directory=str(entry["directory"]),
            # Older entries lack these three rates.
            request_s=float(entry.get("request_s", REQUEST_S)),
            gap_bytes=int(entry.get("gap_bytes", Rates.gap_bytes)),
            block_bytes=int(entry.get("block_bytes", Rates.block_bytes)),
        )
    except (KeyError, TypeError, ValueError):
        return None
    # This form of the test refuses NaN too.
    plausible = all(
        0 < x < 1e18
        for x in (
            found.read_bytes_s, found.write_bytes_s, *numbers.values(), found.request_s,
            found.block_bytes,
        )
    )  # fmt: skip
    return found if plausible else None


def _keep(rates: Rates) -> None:
    """Store the rates. If the home directory is not writable, the next plan measures again."""
    target = _cache_file()
    key = _key(as_path(rates.directory), rates.kernels, rates.threads)
    document = {"format": _FORMAT, "rates": {**_read_cache(), key: asdict(rates)}}
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(json.dumps(document, indent=2))
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
