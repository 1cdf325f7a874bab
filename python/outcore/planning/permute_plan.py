"""Predict the passes, bytes, requests, disk space and time of a permutation before it starts."""

from dataclasses import asdict, dataclass, field
from typing import Any

from outcore._util.if_exists import IfExists
from outcore._util.sizes import format_bytes, format_seconds
from outcore.convert.open_source import open_source
from outcore.convert.rechunk_plan import array_passes
from outcore.layout.disk_reads import DiskReads
from outcore.machine.rates import Rates, stored_or_measured
from outcore.permutations.permute import Job, boxes_of, disk_bytes, job_of, sides_of
from outcore.permutations.traffic import counts_of, least_request_bytes
from outcore.planning.relayout_plan import check_room, cost_of_passes, file_bytes
from outcore.storage.volumes import PathLike


@dataclass(frozen=True)
class PermutePlan:
    """Resources and time of `outcore.permute`; print it to read it. Sizes in bytes.

    Attributes
    ----------
    source, path, kind, shape, dtype
        The source, the new array, and the permutation.
    passes
        Number of passes: how often each element is read and written.
    load_bytes, block_bytes, request_bytes
        M: elements that are permuted in memory at a time; B: runs that move as a whole; and the
        smallest part of a run in one chunk, which is a request. They are 0 for a copy box by box.
    memory_bytes, peak_memory_bytes
        The budget, and the largest amount that the call will use of it.
    disk_bytes, between_bytes
        Disk space of the new array, and that of the intermediate one beside it.
    bytes_read, reads, bytes_written, writes
        Bytes and requests of all passes, exact on plain paths if `is_exact` is true.
    is_exact
        Whether bytes and requests are counted one by one; the text of the plan says "about" where
        they are estimates: for copies box by box, and for more runs than a plan counts.
    seconds
        Time at the measured rates of the disk of the new array.
    notes
        Remarks for the reader.
    """

    source: str
    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    passes: int
    load_bytes: int
    block_bytes: int
    request_bytes: int
    memory_bytes: int
    peak_memory_bytes: int
    disk_bytes: int
    between_bytes: int
    bytes_read: int
    reads: int
    bytes_written: int
    writes: int
    is_exact: bool
    seconds: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)

    def validate(self, if_exists: IfExists = "error") -> "PermutePlan":
        """Return the plan if the disk has room now; `if_exists` is that of the call.

        Raises
        ------
        DiskFullError
            If it has too little.
        """
        check_room(self.path, self.disk_bytes + self.between_bytes, if_exists)
        return self

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        reads = f" in {about}{self.reads} requests" if self.reads else ""
        writes = f" in {about}{self.writes} requests" if self.writes else ""
        memory = f"{format_bytes(self.peak_memory_bytes)} of {format_bytes(self.memory_bytes)}"
        rows = [("passes", str(self.passes))]
        if self.load_bytes:
            text = (
                f"{format_bytes(self.load_bytes)} in memory, in blocks of "
                f"{format_bytes(self.block_bytes)}, requests from "
                f"{format_bytes(self.request_bytes)} on"
            )
            rows.append(("loads", text))
        rows += [
            ("memory", memory),
            ("disk", format_bytes(self.disk_bytes)),
            ("read", f"{about}{format_bytes(self.bytes_read)}{reads}"),
            ("write", f"{about}{format_bytes(self.bytes_written)}{writes}"),
            ("time", f"about {format_seconds(self.seconds)}"),
        ]
        if self.between_bytes:
            rows.insert(-3, ("between", f"{format_bytes(self.between_bytes)} of disk meanwhile"))
        rows += [("note", note) for note in self.notes]
        shape = " x ".join(map(str, self.shape))
        title = f"plan: permute {self.source} to {self.path}, {self.kind}, {shape} {self.dtype}"
        return "\n".join([title, *(f"  {name:<12} {text}" for name, text in rows)])


def plan_permute(
    *,
    source: Any,
    path: PathLike | None = None,
    kind: str | None = None,
    rates: Rates | None = None,
    **options: Any,
) -> PermutePlan:
    """Plan `outcore.permute` to `path`; see `outcore.plan`. It has no array yet."""
    with open_source(source, takes_raw=False) as opened:
        job = job_of(opened, "permuted" if path is None else path, kind, **options)
        known = rates or stored_or_measured(job.where.path.parent)
        figures = (
            _by_boxes(job, known.reads) if job.layouts is None else _by_passes(job, known.reads)
        )
        name = str(opened.path or type(source).__name__)
    requests = figures["reads"] + figures["writes"]
    return PermutePlan(
        source=name, path=str(job.where.path), kind=job.move.kind, shape=job.metadata.shape,
        dtype=job.metadata.dtype.name, memory_bytes=job.memory_bytes,
        seconds=figures["bytes_read"] / known.read_bytes_s
        + figures["bytes_written"] / known.write_bytes_s
        + requests * known.request_s,
        notes=known.notes, **figures,
    )  # fmt: skip


def _by_passes(job: Job, disk: DiskReads) -> dict[str, Any]:
    geometry = job.geometry()
    sides = sides_of(job, len(geometry.passes))
    read, written, is_exact = counts_of(geometry, sides, disk)
    array_bytes, between_bytes = disk_bytes(job, geometry)
    return {
        "passes": len(geometry.passes),
        "load_bytes": geometry.itemsize << geometry.load_bits,
        "block_bytes": geometry.itemsize << geometry.block_bits,
        "request_bytes": least_request_bytes(geometry, sides),
        "peak_memory_bytes": geometry.memory_bytes,
        "disk_bytes": array_bytes,
        "between_bytes": between_bytes,
        "bytes_read": read.nbytes, "reads": read.requests,
        "bytes_written": written.nbytes, "writes": written.requests,
        "is_exact": is_exact,
    }  # fmt: skip


def _by_boxes(job: Job, disk: DiskReads) -> dict[str, Any]:
    moved, most_passes = boxes_of(job)
    passes = array_passes(moved, job.metadata, job.memory_bytes, most_passes)
    cost = cost_of_passes(moved, job.metadata, passes, disk, verify=False)
    return {
        "passes": len(passes), "load_bytes": 0, "block_bytes": 0, "request_bytes": 0,
        "peak_memory_bytes": cost.peak_memory_bytes,
        "disk_bytes": file_bytes(job.metadata), "between_bytes": cost.between_bytes,
        "bytes_read": cost.read.nbytes, "reads": cost.read.requests,
        "bytes_written": cost.written.nbytes, "writes": cost.written.requests,
        "is_exact": cost.is_exact,
    }  # fmt: skip
