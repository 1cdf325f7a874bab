"""Reports: the measured figures of a long call."""

import dataclasses
import math
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from outcore._core import Trace
from outcore._util import strict_json
from outcore._util.sizes import format_bytes, format_seconds
from outcore.report import report_file
from outcore.storage.volumes import PathLike
from outcore.version import VERSION

MATRIX, FACTORS, RIGHT_HAND_SIDES, SOLUTIONS, GUESSES, KEPT = 0, 1, 8, 9, 10, 11
"""Numbers of arrays in spans, for reports without their own names."""

_ARRAYS = {
    MATRIX: "the matrix",
    FACTORS: "the factors",
    RIGHT_HAND_SIDES: "the right-hand sides",
    SOLUTIONS: "the solutions",
    GUESSES: "the solutions to begin with",
    KEPT: "state kept for a resume",
}


PROVENANCE = ("finished", "host", "version")
"""Figures that depend on the place of the call: they stay empty in a report that lacks them."""


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def over_the_least(words: float, lower_bound: float) -> str:
    """Compare the words moved with the lower bound, for plans and reports."""
    return f"{words / lower_bound:.2f} times the least any algorithm must move (lower is better)"


@dataclass
class Report:
    """Figures of a long call; print it to read them.

    Attributes
    ----------
    verb, n, dtype
        The operation; `n` is the order of the matrix, or its columns.
    m
        Rows of a matrix that is not square.
    method
        The method, if there are several.
    seconds, flops
        Duration, and real floating-point operations (complex ones count four times as many).
    bytes_read, bytes_written
        Exact numbers, padding included.
    planned_bytes_read, planned_bytes_written
        The same numbers in the plan of the call; `None` without a plan.
    words_lower_bound
        Least number of words that any algorithm must move with this memory; `None` if unknown.
    io_seconds, wait_seconds
        Time in which the disk was busy, and time in which the call waited for it.
    memory_bytes, peak_memory_bytes
        The budget, and the largest amount that the call used of it.
    growth
        Largest element of U over the largest of A.
    backward_error
        ‖b - Ax‖₁ / (‖A‖₁‖x‖₁ + ‖b‖₁), largest over the right-hand sides.
    condition
        Estimated condition number of A in the 1-norm, by functions with an option for it; otherwise
        `None`.
    probed_condition
        ‖A‖ ‖A⁻¹‖ with A⁻¹ in the Frobenius norm, estimated from random vectors that the call solves
        for together with the right-hand sides. It may exceed the condition number √n times or more.
        It only decides on warnings, and is neither printed nor saved.
    history
        Residuals of an iterative method, one for each sweep or step: the largest of all right-hand
        sides; see its function.
    residuals
        ‖b - Ax‖₂ / ‖b‖₂ of each right-hand side of an iterative method, recomputed at the end.
    rank, residual_norms, degrees_of_freedom
        Figures of `lstsq`; see `LeastSquaresReport`.
    error_bound, frobenius_error, triplet_residuals
        Figures of `svd`; see `SvdReport`.
    kernels, threads
        The BLAS of the arithmetic, and its threads in each process.
    processes
        Figures of each process of a parallel call, by rank: bytes read, written and sent, and
        messages sent, as counted and as planned; of a factorization or a solve in a pool also the
        bytes of panels that it read from I/O servers of others (remote); seconds in which blocks
        were in transfer between hosts, the part of them in which the process did not wait for a
        block (hidden), and its waits for blocks. The other figures of such a call are sums, or of
        times and memory the largest.
    notes
        Remarks on the call.
    arrays
        Names of the arrays in the spans, by number, if they are not a matrix and its factors.
    spans
        Rows (kind, array, start_ns, end_ns, offset, bytes) of the trace, for the timeline.
    job
        Operation and array of the call, as in its progress bar.
    trace
        Path of the trace of all processes and servers, if one was recorded
        (`outcore.chrome_trace`).
    finished, host, version
        End of the call, in ISO 8601 with the offset from UTC; its machine; and the version of
        outcore. Empty in reports without them.
    """

    verb: str
    n: int
    dtype: str
    seconds: float
    flops: float
    bytes_read: int
    bytes_written: int
    planned_bytes_read: int | None = None
    planned_bytes_written: int | None = None
    words_lower_bound: float | None = None
    io_seconds: float = 0.0
    wait_seconds: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    growth: float | None = None
    backward_error: float | None = None
    m: int | None = None
    method: str = ""
    history: list[float] = field(default_factory=list)
    kernels: str = ""
    threads: int = 0
    notes: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    spans: npt.NDArray[np.uint64] | None = field(default=None, repr=False, compare=False)
    condition: float | None = None
    probed_condition: float | None = field(default=None, repr=False, compare=False)
    residuals: list[float] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)
    rank: int | None = None
    residual_norms: list[float] = field(default_factory=list)
    degrees_of_freedom: float | None = None
    error_bound: float | None = None
    frobenius_error: float | None = None
    triplet_residuals: list[float] = field(default_factory=list)
    job: str = ""
    trace: str = ""
    finished: str = field(default_factory=_now, compare=False)
    host: str = field(default_factory=platform.node, compare=False)
    version: str = field(default=VERSION, compare=False)

    ARRAYS: ClassVar[tuple[str, ...]] = ()
    """Attributes of a kind of report that are arrays, which JSON cannot hold."""

    def array_name(self, number: int) -> str:
        """Return the name of an array in the spans."""
        if number < len(self.arrays):
            return self.arrays[number]
        return _ARRAYS.get(number, f"array {number}")

    @property
    def gflops_per_s(self) -> float:
        """Rate in 10⁹ real operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds > 0 else 0.0

    @property
    def overlap(self) -> float | None:
        """Share of the disk's busy time that overlapped with arithmetic.

        `None` if the call measured no such time.
        """
        return max(1 - self.wait_seconds / self.io_seconds, 0.0) if self.io_seconds else None

    @property
    def residual_variances(self) -> list[float]:
        """Estimates by `lstsq` of the variance of an observation of weight 1.

        One for each right-hand side: the squared residual norm over the degrees of freedom; NaN
        without degrees of freedom.
        """
        freedom = self.degrees_of_freedom or 0.0
        return [norm**2 / freedom if freedom > 0 else math.nan for norm in self.residual_norms]

    def words_moved(self) -> float:
        """Return the number of words read and written."""
        return (self.bytes_read + self.bytes_written) / np.dtype(self.dtype).itemsize

    def with_name(self, old: str, new: str) -> "Report":
        """Rename an array in the spans."""
        count = max(len(self.arrays), FACTORS + 1)
        names = [self.array_name(number) for number in range(count)]
        return dataclasses.replace(self, arrays=[new if name == old else name for name in names])

    def followed_by(self, later: "Report") -> "Report":
        """Combine this report and that of a later call into one.

        Arrays of the same name in both spans count as the same array. The least number of words is
        the larger of the two, since a call that does both need not move the sum.
        """
        arrays, spans = joined_spans(self, later)
        with_blas = self if self.kernels else later
        bounds = [r.words_lower_bound for r in (self, later) if r.words_lower_bound is not None]
        known = self.planned_bytes_read is not None and later.planned_bytes_read is not None
        return dataclasses.replace(
            self,
            seconds=self.seconds + later.seconds,
            flops=self.flops + later.flops,
            bytes_read=self.bytes_read + later.bytes_read,
            bytes_written=self.bytes_written + later.bytes_written,
            planned_bytes_read=_sum(self.planned_bytes_read, later.planned_bytes_read)
            if known
            else None,
            planned_bytes_written=_sum(self.planned_bytes_written, later.planned_bytes_written)
            if known
            else None,
            words_lower_bound=max(bounds) if bounds and self.dtype == later.dtype else None,
            io_seconds=self.io_seconds + later.io_seconds,
            wait_seconds=self.wait_seconds + later.wait_seconds,
            peak_memory_bytes=max(self.peak_memory_bytes, later.peak_memory_bytes),
            growth=self.growth if self.growth is not None else later.growth,
            backward_error=later.backward_error,
            condition=later.condition if later.condition is not None else self.condition,
            probed_condition=self.probed_condition
            if later.probed_condition is None
            else later.probed_condition,
            processes=_joined_processes(self.processes, later.processes),
            history=[*self.history, *later.history],
            residuals=[*self.residuals, *later.residuals],
            kernels=with_blas.kernels,
            threads=with_blas.threads,
            finished=later.finished,
            notes=[*self.notes, *(note for note in later.notes if note not in self.notes)],
            arrays=arrays,
            spans=spans,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["spans"], values["probed_condition"]
        return values | {"gflops_per_s": self.gflops_per_s, "overlap": self.overlap}

    def to_json(self) -> str:
        """Return the figures as JSON text; infinities and NaN become null."""
        return strict_json.dumps(self.to_dict(), indent=2)

    def save(self, path: PathLike) -> None:
        """Write figures and spans into one file, replacing an existing one.

        ``outcore report FILE`` draws it, `load` reads it, and ``docs/format.md`` specifies its
        bytes.
        """
        report_file.write(path, self.to_dict(), self.spans)

    @classmethod
    def load(cls, path: PathLike) -> "Report":
        """Read a report from a file of `save`, or from a directory of factors.

        Factors store the figures of their factorization, without spans.

        Raises
        ------
        NotFoundError
            If there is no report at `path`.
        InvalidError
            If the path has other content, or a report of a later version.
        CorruptError
            If the report is damaged.
        """
        return report_file.read(path, cls, PROVENANCE)

    @property
    def has_timeline(self) -> bool:
        """Whether it has spans for a timeline."""
        return self.spans is not None and len(self.spans) > 0

    @property
    def title(self) -> str:
        """Operation and matrix of the call, as a title."""
        rows_of = f"m = {self.m}, " if self.m else ""
        return f"{self.verb}, {rows_of}n = {self.n}, {self.dtype}"

    def rows(self) -> list[tuple[str, str]]:
        """Return names and texts of the figures for printing, without the notes."""
        rows = [
            ("time", format_seconds(self.seconds) + self._rate()),
            ("read", _against(self.bytes_read, self.planned_bytes_read)),
            ("written", _against(self.bytes_written, self.planned_bytes_written)),
        ]
        if self.words_lower_bound:
            moved = over_the_least(self.words_moved(), self.words_lower_bound)
            rows.append(("words moved", moved))
        busy, waited = format_seconds(self.io_seconds), format_seconds(self.wait_seconds)
        if self.overlap is not None and busy != format_seconds(0):
            rows.append(("disk", f"busy {busy}, waited for {waited}: {self.overlap:.0%} hidden"))
        if self.memory_bytes:
            rows.append(
                (
                    "memory",
                    f"{format_bytes(self.peak_memory_bytes)} of {format_bytes(self.memory_bytes)}",
                )
            )
        if self.growth is not None:
            rows.append(("pivot growth", f"{self.growth:.3g}"))
        if self.backward_error is not None:
            rows.append(("backward error", f"{self.backward_error:.2e}"))
        if self.condition is not None:
            is_finite = math.isfinite(self.condition)
            text = f"about {self.condition:.1e}" if is_finite else "infinite"
            rows.append(("condition", text))
        if self.history:
            rows.append(("residual", f"{self.history[-1]:.2e}, the last of {len(self.history)}"))
        if self.rank is not None:
            rows.append(("rank", str(self.rank)))
        if self.residual_norms:
            rows.append(("residual", f"{max(self.residual_norms):.6g} in the 2-norm"))
        if self.residual_norms and self.degrees_of_freedom:
            text = f"{max(self.residual_variances):.6g}, of {self.degrees_of_freedom:.6g} degrees"
            rows.append(("variance", f"{text} of freedom"))
        if self.triplet_residuals:
            rows.append(
                (
                    "residual",
                    f"{max(self.triplet_residuals):.1e} of s[0], the largest of "
                    f"{len(self.triplet_residuals)} triplets",
                )
            )
        if self.frobenius_error is not None:
            rows.append(("error", f"about {self.frobenius_error:.3g} in the Frobenius norm"))
        if self.error_bound is not None:
            rows.append(("error", f"below {self.error_bound:.3g} in the 2-norm"))
        if self.kernels:
            threads = f"{self.threads} thread" + "s" * (self.threads != 1)
            rows.append(("BLAS", f"{self.kernels}, {threads}"))
        if self.processes:
            sent = [
                sum(each[name] for each in self.processes)
                for name in ("bytes_sent", "planned_bytes_sent", "messages_sent")
            ]
            text = f"{len(self.processes)}, which sent {_against(*sent[:2])}, in {sent[2]} messages"
            rows.append(("processes", text))
            remote = [
                sum(each.get(name, 0) for each in self.processes)
                for name in ("remote_bytes_read", "planned_remote_bytes_read")
            ]
            if any(remote):
                rows.append(("other servers", f"{_against(*remote)}, of panels"))
            rows += _blocks_row(self.processes)
        if self.method:
            rows.insert(0, ("method", self.method))
        if self.job:
            rows.insert(0, ("job", self.job))
        if self.trace:
            rows.append(("trace", self.trace))
        if self.finished:
            by = f"on {self.host}, outcore {self.version}"
            rows.append(("finished", f"{self.finished.replace('T', ' ')} {by}"))
        return rows

    def _rate(self) -> str:
        return f", {self.gflops_per_s:.1f} GFLOP/s" if self.flops else ""

    def __str__(self) -> str:
        rows = [*self.rows(), *(("note", note) for note in self.notes)]
        return "\n".join([self.title, *(f"  {name:<15} {text}" for name, text in rows)])


_kept = threading.local()


def keep(report: Report, result: object = None) -> None:
    """Store a report for `last_report`, and in a result with a ``report`` attribute, an `Array`."""
    _kept.report = report
    if hasattr(result, "report"):
        result.report = report


def last_report() -> Report | None:
    """Return the report of this thread's last call that returns none, like NumPy's and SciPy's.

    These calls are `lu_solve`, `cho_solve`, `qr_solve`, `matmul` and `solve_triangular`. A result
    on disk has the report as its ``report``, too.

    Returns
    -------
    Report or None
        `None` before the first such call.
    """
    found: Report | None = getattr(_kept, "report", None)
    return found


def _joined_processes(
    first: list[dict[str, Any]], later: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Combine the figures of each process in two reports."""
    if len(first) != len(later):
        return first or later
    return [
        {
            name: (max if name.startswith("peak") else sum)((a.get(name, 0), b.get(name, 0)))
            for name in a | b
        }
        for a, b in zip(first, later, strict=True)
    ]


def of_processes(own: Report, reports: Sequence[Report]) -> Report:
    """Combine the reports of all processes of a call into one; the spans are those of `own`."""

    def total(name: str) -> Any:
        return sum(getattr(report, name) for report in reports)

    def largest(name: str) -> Any:
        return max(getattr(report, name) for report in reports)

    return dataclasses.replace(
        reports[0],
        spans=own.spans,
        words_lower_bound=None,
        processes=[each for report in reports for each in report.processes],
        **{
            name: total(name)
            for name in (
                "flops", "bytes_read", "bytes_written", "planned_bytes_read",
                "planned_bytes_written",
            )
        },
        **{
            name: largest(name)
            for name in (
                "seconds", "io_seconds", "wait_seconds", "memory_bytes", "peak_memory_bytes",
            )
        },
    )  # fmt: skip


def _blocks_row(processes: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a row on the blocks that processes get from one another."""
    moving, hidden, waited = (
        [each.get(name, 0.0) for each in processes]
        for name in ("transfer_seconds", "hidden_transfer_seconds", "block_wait_seconds")
    )
    if not any(waited):
        return []
    text = f"waited for {format_seconds(max(waited))}"
    if any(moving):
        busy = format_seconds(max(moving))
        text = f"in transfer {busy}, {text}: {sum(hidden) / sum(moving):.0%} hidden"
    return [("blocks", text)]


def _against(done: int, planned: int | None) -> str:
    if planned is None:
        return format_bytes(done)
    if done == planned:
        return f"{format_bytes(done)}, as planned"
    return f"{format_bytes(done)}, planned {format_bytes(planned)}"


_MOVES = [Trace.kinds().index(kind) for kind in ("read", "write", "sync")]
"""Kinds of spans that belong to an array."""


def joined_spans(*reports: Report) -> tuple[list[str], npt.NDArray[np.uint64] | None]:
    """Join the spans of reports, with one number for each name of an array.

    Returns
    -------
    names : list of str
        Names of the arrays, by number.
    spans : numpy.ndarray or None
        Spans as in a report; `None` if no report has any.
    """
    names: list[str] = []
    joined = []
    for report in reports:
        if report.spans is None:
            continue
        spans = report.spans.copy()
        moves = np.isin(spans[:, 0], _MOVES)
        numbers = spans[moves, 1]
        found, where = np.unique(numbers, return_inverse=True)
        called = [report.array_name(int(number)) for number in found]
        names += [name for name in dict.fromkeys(called) if name not in names]
        if len(found):
            spans[moves, 1] = np.array([names.index(name) for name in called], np.uint64)[where]
        joined.append(spans)
    return names, np.concatenate(joined) if joined else None


def _sum(a: int | None, b: int | None) -> int:
    return (a or 0) + (b or 0)


def io_and_wait_seconds(trace: Trace) -> tuple[float, float]:
    """Return the time in which the disk was busy, and the time in which the caller waited for it.

    Overlapping requests count once in the first.
    """
    disk_ns, wait_ns = trace.totals()
    return disk_ns / 1e9, wait_ns / 1e9
