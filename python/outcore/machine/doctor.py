"""Examine the machine, its BLAS and a directory, and name improvements.

Each ``judge_`` function turns facts into findings, so that tests can pass made-up facts; `examine`
collects the real facts.
"""

import importlib.metadata
import os
import platform
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outcore._util import budget, cgroups
from outcore._util.mounts import Mount
from outcore._util.sizes import format_bytes
from outcore.blas import blas_choice
from outcore.blas.blas_choice import BlasChoice, BlasReport
from outcore.errors import NotFoundError, OutcoreError
from outcore.machine import machine, processor, rates
from outcore.machine.processor import Peak, Use
from outcore.machine.rates import Measurement, Rates
from outcore.storage.volumes import PathLike

Level = Literal["ok", "note", "warn", "fail"]

_NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "virtiofs", "fuse.sshfs",
     "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"]
)  # fmt: skip
_PARALLEL = frozenset(
    ["lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "panfs", "orangefs", "pvfs2", "wekafs"]
)
_IN_MEMORY = frozenset(["tmpfs", "ramfs", "devtmpfs"])
_COPY_ON_WRITE = frozenset(["btrfs", "zfs", "bcachefs"])
_SMALL_FILES = frozenset(["vfat", "msdos"])

_THREAD_VARIABLES = {
    "openblas": ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    "blis": ("BLIS_NUM_THREADS", "OMP_NUM_THREADS"),
    "flexiblas": ("FLEXIBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
}
"""Environment variables that each library obeys; the first one takes precedence."""

_SLOW_DISK_BYTES_S = 100e6
_SMALL_SHARE = 0.3
"""Share of the peak that any BLAS exceeds, even on cores with one AVX-512 unit."""

_AGAIN = "run outcore doctor again when the machine is quiet; the best rates are kept"
_LITTLE_BYTES = 1 << 30
_OPEN_FILES = 1024


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes
    ----------
    topic : str
        Subject of the finding, one or two words.
    level : str
        ``"ok"``; ``"note"``, good to know; ``"warn"``, slower or riskier than necessary;
        ``"fail"``, outcore cannot work here.
    text : str
        The finding.
    fix : str
        The one remedy; empty if and only if the level is ``"ok"``.
    """

    topic: str
    level: Level
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") != (self.fix == ""):
            raise ValueError(f"a finding that isn't ok has a fix, and no other: {self}")


def _judged(topic: str, text: str, fix: str) -> Finding:
    """Return a finding that is ok if it needs no fix, and a warning otherwise."""
    return Finding(topic, "warn" if fix else "ok", text, fix)


@dataclass(frozen=True)
class Examination:
    """All findings, and the stored rates if a measurement succeeded."""

    directory: str
    findings: list[Finding]
    rates: Rates | None

    @property
    def failed(self) -> bool:
        """Whether outcore cannot work here."""
        return any(finding.level == "fail" for finding in self.findings)


def examine(directory: PathLike, seconds: float = 3.0) -> Examination:
    """Examine the machine and a directory; measure rates for about `seconds`, and keep the best.

    Raises
    ------
    NotFoundError
        If the directory does not exist.
    """
    where = Path(os.path.abspath(directory))
    if not where.is_dir():
        raise NotFoundError(f"there is no directory {where}; give one that exists")
    findings = [
        _versions(),
        *judge_blas(blas_choice.choose(), blas_choice.scipy_blas()),
        *judge_threads(
            blas_choice.scipy_blas(),
            len(os.sched_getaffinity(0)),
            cgroups.cpu_quota(),
            os.environ,
        ),
        *judge_memory(budget.available_bytes(), _memory_total_bytes(), budget.cgroup_limits()),
        *judge_swap(*_swap_bytes()),
        *judge_limits(
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            resource.getrlimit(resource.RLIMIT_AS)[0],
            resource.getrlimit(resource.RLIMIT_FSIZE)[0],
        ),
        *judge_file_system(machine.mount_of(where), in_place=machine.no_copy_on_write(where)),
        *judge_space(shutil.disk_usage(where).free),
    ]
    kept = None
    try:
        findings += judge_direct_io(machine.direct_io_works(where), machine.mount_of(where))
        measured = rates.measured(where, seconds)
        kept = measured.kept
        allowed = min(machine.usable_cores(), kept.threads)
        findings += [*judge_use(measured.use), *judge_rates(measured, processor.peak(allowed))]
    except OutcoreError as error:
        findings.append(Finding("disk rates", "fail", *_said_and_fix(error)))
    return Examination(str(where), findings, kept)


def _said_and_fix(error: OutcoreError) -> tuple[str, str]:
    """Split an error's message: by the rule in `outcore.errors`, the last part is the fix."""
    said, separator, fix = str(error).rpartition("; ")
    return (said, fix) if separator else (fix, "see the message, and the system log")


def _versions() -> Finding:
    names = ("outcore", "numpy", "scipy")
    parts = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return Finding("versions", "ok", f"{', '.join(parts)}, Python {platform.python_version()}")


def judge_blas(choice: BlasChoice, found: BlasReport | None) -> Iterator[Finding]:
    """Judge the BLAS of SciPy, and whether its kernels suit the processor."""
    if found is None:
        yield Finding(
            "BLAS",
            "warn",
            "SciPy's BLAS does not report its name; it may be the slow reference BLAS",
            "install SciPy from its wheel: pip install --force-reinstall scipy",
        )
        return
    kernels = f"{found.library} {found.version or ''}".strip()
    if found.architecture:
        kernels += f" with {found.architecture} kernels"
    kernels += f", {choice.model}" if choice.model else ""
    old = (found.architecture or "").lower() in {"haswell", "zen"} and found.library == "openblas"
    if not (old and choice.avx512):
        chosen = f"; outcore chose them: {choice.reason}" if choice.action == "set" else ""
        yield Finding("BLAS", "ok", kernels + chosen)
        return
    slow = "they do not use this processor's AVX-512, which runs up to 1.7 times as fast"
    why, fix = choice.reason, "import outcore before scipy"
    if choice.coretype and choice.action == "kept":
        why = f"{blas_choice.CORETYPE_VARIABLE}={choice.coretype} is set"
        fix = f"unset {blas_choice.CORETYPE_VARIABLE}"
    elif not choice.already_loaded:
        fix = f"export {blas_choice.CORETYPE_VARIABLE}={blas_choice.AVX512_CORETYPE}"
    yield Finding("BLAS", "warn", f"{kernels}; {slow}; {why}", fix)


def judge_threads(
    found: BlasReport | None, cores: int, quota: float | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Compare the threads of the BLAS with the processors that it may use."""
    usable = cores if quota is None else max(1, min(cores, round(quota)))
    offer = f"{cores} processors"
    if quota is not None and quota < cores:
        offer += f", of which a control group allows {quota:g}"
    if found is None:
        yield Finding("threads", "ok", offer)
        return
    text = f"{found.threads} BLAS threads on {offer}"
    heeded = _THREAD_VARIABLES.get(found.library, ("OMP_NUM_THREADS",))
    fix = "" if found.threads == usable else f"export {heeded[0]}={usable}"
    if found.threads < usable:
        limits = [name for name in heeded if environment.get(name)]
        if limits:
            fix = f"unset {limits[0]} (now {environment[limits[0]]})"
    elif found.threads > usable:
        text = f"{text}: they wait for each other"
    yield _judged("threads", text, fix)


def judge_memory(
    available: int, total: int, limits: list[tuple[str, int, int]]
) -> Iterator[Finding]:
    """Judge the memory available for budgets."""
    share = int(available * budget.DEFAULT_SHARE)
    text = (
        f"{format_bytes(available)} available of {format_bytes(total)}; "
        f"calls without memory= take {format_bytes(share)}"
    )
    fix = "end other programs, or use a machine with more" if available < _LITTLE_BYTES else ""
    yield _judged("memory", text, fix)
    tight = [(limit, where) for where, limit, _ in limits if limit < total]
    if tight:
        limit, where = min(tight)
        yield Finding(
            "memory limit",
            "note",
            f"the control group {where} allows {format_bytes(limit)} of the machine's "
            f"{format_bytes(total)}; budgets are made within it",
            "raise the limit (docker run --memory, systemd-run -p MemoryMax=, the batch job's)",
        )


def judge_swap(total: int, used: int) -> Iterator[Finding]:
    """Judge the swap space, which no budget includes."""
    text, fix = f"{format_bytes(total)}, hardly used" if total else "none; none is needed", ""
    if used > _LITTLE_BYTES:
        text = f"{format_bytes(used)} of {format_bytes(total)} in use: memory is short already"
        fix = "end other programs, or pass a smaller memory="
    yield _judged("swap", text, fix)


def judge_limits(open_files: int, address_space: int, file_size: int) -> Iterator[Finding]:
    """Judge the limits of the process (``ulimit``)."""
    unlimited = resource.RLIM_INFINITY
    fine = True
    if open_files != unlimited and open_files < _OPEN_FILES:
        fine = False
        yield Finding(
            "open files",
            "warn",
            f"a process may open {open_files} files; an array of many shard files takes two each",
            f"ulimit -n {_OPEN_FILES * 4}",
        )
    if address_space != unlimited:
        fine = False
        yield Finding(
            "address space",
            "warn",
            f"ulimit -v allows {format_bytes(address_space)}, which libraries and threads reach "
            "long before the memory is full",
            "ulimit -v unlimited",
        )
    if file_size != unlimited:
        fine = False
        yield Finding(
            "file size",
            "warn",
            f"a process may write files of {format_bytes(file_size)} only, and is ended at more",
            "ulimit -f unlimited",
        )
    if fine:
        yield Finding("limits", "ok", "no limit of the process (ulimit) is in the way")


def judge_file_system(mount: Mount | None, *, in_place: bool) -> Iterator[Finding]:
    """Judge whether the file system suits arrays that one machine writes in place."""
    if mount is None:
        return
    kind = mount.fs_type
    at = f"{kind} on {mount.source}, mounted at {mount.point}"
    local = "choose a directory on a local disk"
    if "ro" in mount.options:
        yield Finding("file system", "fail", f"{at}: read-only", "choose a directory to write to")
    elif kind in _NETWORK:
        text = "over the network: slow, and a lost connection stops the run"
        yield Finding("file system", "warn", f"{at}: {text}", local)
    elif kind in _PARALLEL:
        text = "a parallel file system shared with others, whose rates change with their work"
        yield Finding("file system", "note", f"{at}: {text}", "prefer local scratch if it fits")
    elif kind in _IN_MEMORY:
        text = "lies in memory, beside every budget: nothing is out of core there"
        yield Finding("file system", "warn", f"{at}: {text}", local)
    elif kind == "overlay":
        text = "a container's own layer, often slow and small"
        fix = "mount a directory of the host into the container, and use that"
        yield Finding("file system", "note", f"{at}: {text}", fix)
    elif kind == "btrfs" and (in_place or "nodatacow" in mount.options):
        yield Finding("file system", "ok", f"{at}: new files here are written in place")
    elif kind in _COPY_ON_WRITE:
        text = "copies on write: arrays written in place become fragmented and slow"
        fix = "chattr +C on an empty directory for arrays" if kind == "btrfs" else "use ext4 or XFS"
        yield Finding("file system", "warn", f"{at}: {text}", fix)
    elif kind in _SMALL_FILES:
        yield Finding("file system", "warn", f"{at}: no file above 4 GiB", "use ext4 or XFS")
    else:
        yield Finding("file system", "ok", at)


def judge_space(free: int) -> Iterator[Finding]:
    """Judge the free space of the disk."""
    fix = "free some room or choose another directory" if free < _LITTLE_BYTES else ""
    yield _judged("free space", f"{format_bytes(free)} free", fix)


def judge_direct_io(works: bool, mount: Mount | None) -> Iterator[Finding]:
    """Judge whether transfers can bypass the page cache."""
    if not works:
        yield Finding(
            "direct I/O",
            "warn",
            "refused here: data goes through the page cache, which costs time and memory",
            "choose a directory on a local disk with ext4 or XFS",
        )
    elif mount is not None and mount.fs_type in _IN_MEMORY:
        yield Finding("direct I/O", "ok", "accepted, but there is no disk below")
    else:
        yield Finding("direct I/O", "ok", "works")


def judge_use(use: Use) -> Iterator[Finding]:
    """Judge whether the processors were idle during the measurement."""
    parts = [f"other programs take {use.others:.1f} of {use.processors} processors"]
    if use.stolen > processor.BUSY:
        parts.append(f"the host of this virtual machine keeps {use.stolen:.1f}")
    text = ", ".join(parts)
    yield _judged("load", f"busy now: {text}" if use.is_busy else text, _AGAIN * use.is_busy)


def judge_rates(measured: Measurement, peak: Peak | None) -> Iterator[Finding]:
    """Judge the rates of disk and arithmetic, and whether the disk can keep up."""
    now, kept = measured.now, measured.kept
    fix = "choose a directory on a faster disk, such as a local SSD"
    is_slow = min(now.read_bytes_s, now.write_bytes_s) < _SLOW_DISK_BYTES_S
    text = _disk_rates(now) + _before(now, kept, _disk_rates)
    yield _judged("disk rates", text, fix * is_slow)
    text = f"matrix products in GFLOP/s: {_products(now)}{_before(now, kept, _products)}"
    share, fix = 1.0, ""
    if peak is not None:
        text += f"; {peak} can do about {peak.flops_s / 1e9:.3g} in float64"
        share = now.gemm_flops_s["float64"] / peak.flops_s
    if share < _SMALL_SHARE:
        fix = "look at the findings on BLAS and threads, and whether the processor is throttled"
        fix = _AGAIN if measured.use.is_busy else fix
        text = f"{share:.0%} of the peak: {text}"
    yield _judged("arithmetic", text, fix)
    # Each number read takes part in one multiplication and one addition per column of the slab.
    columns = kept.gemm_flops_s["float64"] * 8 / (2 * kept.read_bytes_s)
    slab_bytes = columns * 100_000 * 8
    yield Finding(
        "balance",
        "ok",
        f"in LU the disk keeps up with the processor if a slab has {columns:.0f} columns or more: "
        f"a budget of about {format_bytes(slab_bytes)} for n = 100,000 in float64",
    )


def _disk_rates(found: Rates) -> str:
    return f"reads {found.read_bytes_s / 1e9:.3g} GB/s, writes {found.write_bytes_s / 1e9:.3g} GB/s"


def _products(found: Rates) -> str:
    return ", ".join(f"{name} {rate / 1e9:.3g}" for name, rate in found.gemm_flops_s.items())


def _before(now: Rates, kept: Rates, written: Callable[[Rates], str]) -> str:
    """Return text with the stored rates, if earlier measurements were better."""
    return "" if written(now) == written(kept) else f"; the best measured here: {written(kept)}"


def _memory_total_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _swap_bytes() -> tuple[int, int]:
    """Return the size of the swap space, and its bytes in use."""
    found = {"SwapTotal": 0, "SwapFree": 0}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return found["SwapTotal"], found["SwapTotal"] - found["SwapFree"]


_COLOURS: dict[Level, str] = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}


def show(examination: Examination, console: Console) -> None:
    """Print the findings as a table, with each fix below its finding."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in examination.findings:
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="bold")
        level = Text(finding.level, style=_COLOURS[finding.level])
        table.add_row(level, finding.topic, text)
    console.print(table)
