"""FLASH's I/O by groups of arrays, HDF5 and PnetCDF, with 2 to 8 processes and 1 to 4 servers.

HDF5 and PnetCDF write through the preloaded library to a pool, and by plain MPI-IO to one disk of
the same rate as all disks of the pool. The same without disks, in memory, shows the time of types
and exchange. The last place is the machine's own disk.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import outcore as oc
from benchmarks import fio
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.collective import FIO_BLOCK_BYTES, FIO_THREADS
from benchmarks.collective_ranks import Ranks
from benchmarks.figures import Figure, Target
from benchmarks.flash import model, programs
from benchmarks.flash.page import PAGE, PICTURE, draw, tables
from benchmarks.flash.points import CONTENDERS, Contender, Point
from benchmarks.flash.programs import Extent, Written
from benchmarks.mpi_io import MPICC, RUNS, memory_type
from benchmarks.mpi_io import PROCESSES as RUNS_PROCESSES
from benchmarks.page_tables import put_into
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.streaming import rate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool
from outcore._util import mpi_io

TARGETS = {"each": 0.9, "joined": 0.9, "hdf5": 0.75, "pnetcdf": 0.75}
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Scale:
    """Extent of the measurement: numbers of servers and processes, and that of each job.

    `rounds` is the number of checkpoints of each kind in the largest job with disks; others write
    one.
    """

    servers: tuple[int, ...]
    processes: tuple[int, ...]
    factor: int
    rounds: int


SCALES = {
    "full": Scale((1, 2, 4), (2, 4, 8), 10, 3),
    "quick": Scale((4,), (8,), 4, 1),
    "tiny": Scale((2,), (2,), 1, 1),
}


def measure(setting: Setting) -> Outcome:
    lacking = why_not() or programs.why_not("hdf5") or programs.why_not("pnetcdf")
    if lacking:
        return Outcome([Figure("checkpoints of FLASH", skipped=lacking)])
    job = Job(setting, SCALES[setting.size])
    # The largest job and the machine's own disk have targets, so they come first.
    most, *others = sorted(job.scale.servers, reverse=True)
    job.with_servers(most)
    job.on_own_disk()
    for servers in others:
        job.with_servers(servers)
    is_full = setting.size == "full"
    draw(job.points, PICTURE if is_full else setting.output / PICTURE.name)
    if is_full:
        put_into(PAGE, tables(job.points))
    return job.outcome()


@dataclass
class Job:
    """The work, and its points."""

    setting: Setting
    scale: Scale
    contenders: Sequence[Contender] = tuple(CONTENDERS)
    points: list[Point] = field(default_factory=list)
    types: list[Figure] = field(default_factory=list)
    own_disk_bytes_s: float = 0.0

    def __post_init__(self) -> None:
        folder = self.setting.scratch / "programs"
        folder.mkdir()
        ways = {contender.way for contender in self.contenders}
        self.programs = {name: programs.build(name, folder) for name in ways & {*programs.PACKAGES}}
        self.library = mpi_io.library(programs.MPICC) if self.programs else None

    def outcome(self) -> Outcome:
        """Return the results so far."""
        figures = [*self.shares(), *self.types, *self.of_own_disk()]
        return Outcome(figures, {"points": [asdict(point) for point in self.points]})

    @property
    def most(self) -> tuple[int, int]:
        """The most servers and processes."""
        return max(self.scale.servers), max(self.scale.processes)

    def with_servers(self, servers: int) -> None:
        """Measure on disks, and the largest job in memory, for its split."""
        largest = [self.most[1]] if servers == self.most[0] else []
        self.on_pools(servers, self.scale.processes, largest)
        room, limit = self.room_bytes, servers * DISK_BYTES_S
        # One disk with the rate of all: a file of plain MPI-IO lies on one.
        with (
            Testbed(
                self.setting.scratch, disks=1, disk_bytes=room + SPARE_BYTES, disk_bytes_s=limit
            ) as bed,
            memory() as folder,
        ):
            self.measure_all("disks", servers, limit, plain=bed.disks[0].path, bed=bed)
            self.measure_all("memory", servers, 0, largest, plain=folder)

    @property
    def room_bytes(self) -> int:
        """Bytes of disk for the files of a job."""
        return int(2.5 * self.bytes_of(max(self.scale.processes)))

    def on_pools(self, servers: int, counts: Sequence[int], largest: Sequence[int]) -> None:
        """Measure pools on disks with these numbers of processes, and in memory with `largest`."""
        limit, room = servers * DISK_BYTES_S, self.room_bytes
        with (
            Testbed(
                self.setting.scratch, disks=servers, disk_bytes=room // servers + SPARE_BYTES,
                disk_bytes_s=DISK_BYTES_S,
            ) as bed,
            memory() as folder,
        ):  # fmt: skip
            on_disks = BedPool(
                bed, self.setting.scratch / f"pool{servers}",
                [disk.path / "data" for disk in bed.disks], is_local=True,
            )  # fmt: skip
            in_memory = BedPool(
                bed, folder / "pool", [folder / str(i) for i in range(servers)], is_local=True
            )
            self.measure_all("disks", servers, limit, counts, pool=on_disks)
            if servers == self.most[0] and self.programs:
                self.measure_types(on_disks, servers)
            self.measure_all("memory", servers, 0, largest, pool=in_memory)

    def measure_types(self, pool: BedPool, servers: int) -> None:
        """Measure a memory type of many runs against contiguous memory."""
        library = mpi_io.library(MPICC)
        preloaded = {"LD_PRELOAD": str(library), "OUTCORE_KEY": str(pool.key_file)}
        url = local_url(pool)
        where = f", {servers} servers with 100 MB/s disks"
        with Ranks(RUNS_PROCESSES, url, pool.key_file, (), preloaded) as ranks:
            count = RUNS[self.setting.size]
            self.types = [memory_type(ranks, f"{url}::runs", count, self.scale.rounds, where)]
        remove(pool, "runs")

    def on_own_disk(self) -> None:
        """Measure on the machine's own disk."""
        servers, processes = self.most
        nbytes = self.bytes_of(processes)
        peak = 0.0
        if fio.is_installed():
            file = self.setting.scratch / "peak"
            # Direct I/O takes whole blocks.
            whole = -(-nbytes // (FIO_BLOCK_BYTES * FIO_THREADS)) * FIO_BLOCK_BYTES * FIO_THREADS
            one = fio.Fio(file, whole, FIO_BLOCK_BYTES, FIO_THREADS, huge_pages=True, anew=True)
            peak = self.own_disk_bytes_s = one.rate("write")
            file.unlink(missing_ok=True)
        with Testbed(self.setting.scratch) as bed:
            folders = [self.setting.scratch / f"own{i}" for i in range(servers)]
            pool = BedPool(bed, self.setting.scratch / "own", folders, is_local=True)
            self.measure_all("own disk", servers, peak, [processes], pool=pool)
        plain = self.setting.scratch / "plain"
        plain.mkdir()
        self.measure_all("own disk", servers, peak, [processes], plain=plain)

    def of_own_disk(self) -> Iterator[Figure]:
        """Yield the ratios to plain MPI-IO and to fio on the machine's own disk."""
        found = {point.key: point for point in self.points}
        peak = self.own_disk_bytes_s
        for way in ("hdf5", "pnetcdf"):
            both = [
                found.get((Contender(way, is_plain), "own disk", *self.most))
                for is_plain in (False, True)
            ]
            ours, rival = both
            if ours is None or rival is None:
                continue
            for is_packed in (False, True):
                memory_form = "packed" if is_packed else "guard cells left out"
                job = f"{ours.processes} processes, own disk"
                what = f"{ours.contender.title}, {memory_form}, {job}"
                rates, theirs = (each.rates(is_packed=is_packed) for each in (ours, rival))
                ours_text, theirs_text = (
                    rate(each.rate(is_packed=is_packed)) for each in (ours, rival)
                )
                yield Figure(
                    f"{what}: rate against plain MPI-IO",
                    [a / b for a, b in zip(rates, theirs, strict=True)],
                    Target("≥", 2),
                    ours=ours_text,
                    rival=theirs_text,
                )
                if peak:
                    yield Figure(
                        f"{what}: share of the disk's rate (instead of twice plain MPI-IO)",
                        [each / peak for each in rates],
                        Target("≥", 0.8),
                        ours=ours_text,
                        peak=rate(peak),
                    )

    def shares(self) -> Iterator[Figure]:
        """Yield the shares of the sum of the disks, with the most servers and processes."""
        for point in self.points:
            contender, place, servers, processes = point.key
            if place != "disks" or (servers, processes) != self.most:
                continue
            for is_packed in (False, True):
                memory_form = "packed" if is_packed else "guard cells left out"
                yield Figure(
                    f"{contender.title}, {memory_form}, checkpoint of "
                    f"{point.checkpoint_bytes >> 20} MiB, {processes} processes, {servers} "
                    "servers with 100 MB/s disks: share of the sum",
                    [each / point.limit_bytes_s for each in point.rates(is_packed=is_packed)],
                    None if contender.is_plain else Target("≥", TARGETS[contender.way]),
                    ours=rate(point.rate(is_packed=is_packed)),
                    peak=rate(point.limit_bytes_s),
                )

    def bytes_of(self, processes: int) -> int:
        """Return the size of a checkpoint."""
        return model.file_bytes(
            "checkpoint", model.blocks_of(processes, self.scale.factor)[-1].stop
        )

    def measure_all(
        self,
        place: str,
        servers: int,
        limit: float,
        counts: "Sequence[int] | None" = None,
        *,
        pool: BedPool | None = None,
        plain: Path | None = None,
        bed: Testbed | None = None,
    ) -> None:
        """Measure all contenders of a pool, or of a plain directory, which a testbed may limit."""
        for processes in self.scale.processes if counts is None else counts:
            has_target = place != "memory" and (servers, processes) == self.most
            rounds = self.scale.rounds if has_target else 1
            extent = Extent(processes, self.scale.factor, rounds)
            for contender in self.contenders:
                if contender.is_plain != (pool is None):
                    continue
                if pool is not None:
                    written = self.on_pool(contender.way, pool, extent)
                else:
                    assert plain is not None
                    written = self.on_plain(contender.way, plain, extent, bed)
                point = Point(
                    contender, place, servers, processes, self.bytes_of(processes), limit, written
                )
                self.points.append(point)
                rates = [rate(point.rate(is_packed=is_packed)) for is_packed in (False, True)]
                print(
                    f"{place}, {servers} servers, {processes} processes, {contender.title}: "
                    f"{rates[0]}, packed {rates[1]}",
                    flush=True,
                )
                self.setting.keep(self.outcome())

    def on_pool(self, way: str, pool: BedPool, extent: Extent) -> list[Written]:
        """Run a contender on a pool."""
        if way in self.programs:
            variables = {"LD_PRELOAD": str(self.library), "OUTCORE_KEY": str(pool.key_file)}
            above = f"{local_url(pool)}::f/f"
            program = programs.in_c(self.programs[way], above, extent, variables)
        else:
            program = programs.in_python(local_url(pool), pool.key_file, way, "f/f", extent)
        written = program.run()
        remove(pool, "f")
        return written

    def on_plain(
        self, way: str, folder: Path, extent: Extent, bed: Testbed | None
    ) -> list[Written]:
        """Run a contender on plain files."""
        below = folder / "f"
        below.mkdir()
        written = programs.in_c(self.programs[way], str(below / "f"), extent).run(bed)
        shutil.rmtree(below)
        return written


def local_url(pool: BedPool) -> str:
    """Return the URL of a pool by its UNIX socket."""
    if pool.local_url is None:
        raise OSError("the path of the scratch directory is too long for a UNIX socket")
    return pool.local_url


def remove(pool: BedPool, name: str) -> None:
    """Remove something from a pool."""
    with oc.connect(local_url(pool), key=pool.key_file) as client:
        client.rm(name, recursive=True)


@contextmanager
def memory() -> Iterator[Path]:
    """Create a directory in memory, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=f"outcore-flash-{os.getpid()}-", dir=MEMORY) as folder:
        yield Path(folder)


if __name__ == "__main__":
    main("flash", measure)
