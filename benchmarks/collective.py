"""Collective reads and writes of an array by the processes of a parallel program.

They are compared with one process that streams the same bytes to the same disks, and with MPI-IO.
Without disks they are compared with TCP (Seamons et al. 1995: natural and traditional order,
infinitely fast disk).
"""

import functools
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks import fio, iperf3
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.collective_ranks import Ranks
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient
from benchmarks.rounds import Rounds, alternate
from benchmarks.streaming import rate
from outcore.pool import local_pool
from outcore.pool import state as pool_state

SIDE = {"full": 512, "quick": 256, "tiny": 32}
MESH = (2, 2, 2)
WORDS = "block,block,block"
ORDERS = {"natural": 0.8, "traditional": 0.7}
"""Orders on disk, and their targets relative to one process's rate."""

OF_DISK = 0.8
"""Target relative to the disk's rate, where MPI-IO is not far enough behind."""

FIO_BLOCK_BYTES, FIO_THREADS = 4 << 20, 4

FAST_DISK = {"natural": 0.8, "traditional": 0.6}


def measure(setting: Setting) -> Outcome:
    side = SIDE[setting.size]
    rounds = 1 if setting.size == "tiny" else 3
    job = Job(setting, side)
    directories = [setting.scratch / "a", setting.scratch / "b"]
    list(local_pool.start(directories, "127.0.0.1:0"))
    try:
        url = local_pool.url_of(directories[0])
        key = directories[0] / pool_state.STATE / pool_state.KEY
        with oc.connect(url, key=key) as pool:
            for order in ORDERS:
                oc.create_array(pool / order, (side,) * 3, "f8", **on_disk(order)).close()
            # Three blocks on two servers.
            oc.create_array(
                pool / "uneven", (side,) * 3, "f8", disk_schema="block,*,*", mesh=3
            ).close()
            with (
                PoolClient(url, key) as one,
                Ranks(math.prod(MESH), url, key) as ranks,
            ):
                one.seconds("make", name="flat", nbytes=job.nbytes, stripe_unit_bytes=1 << 20)
                ranks.seconds("hold", shape=[side // m for m in MESH])
                return Outcome(
                    [
                        *job.against_others(pool, one, ranks, rounds),
                        *job.without_disks(ranks, rounds),
                        job.imbalance(pool, ranks),
                    ]
                )
    finally:
        local_pool.stop(directories[0])


def on_disk(order: str) -> dict[str, Any]:
    """Return the arguments of an array in an order."""
    return {"disk_schema": order} | ({"mesh": MESH} if order == "natural" else {})


class Job:
    """The work, and its figures."""

    def __init__(self, setting: Setting, side: int) -> None:
        self.side = side
        self.nbytes = 8 * side**3
        self.flat = setting.scratch / "flat.mpi"

    def against_others(
        self, pool: oc.Pool, one: PoolClient, ranks: Ranks, rounds: int
    ) -> list[Figure]:
        """Compare with one process, with MPI-IO, and with the plan."""
        figures = []
        view = {"path": str(self.flat), "shape": [self.side] * 3, "mesh": MESH}
        for direction in ("write", "read"):
            whole = {"do": direction, "name": "flat", "offset": 0, "nbytes": self.nbytes}
            runs = {order: self.run(ranks, direction, order) for order in ORDERS}
            runs["one process"] = functools.partial(self.alone, one, whole)
            runs["MPI-IO"] = functools.partial(self.mpi, ranks, f"mpi_{direction}", view)
            runs |= self.disk(direction, self.flat)
            found = alternate(direction, runs, rounds=rounds, show=rate)
            targets: dict[str, dict[str, float]] = {
                "one process": ORDERS,
                "MPI-IO": dict.fromkeys(ORDERS, 5 if direction == "write" else 3),
                "the disk's": dict.fromkeys(ORDERS, OF_DISK) if direction == "write" else {},
            }
            for rival in list(runs)[len(ORDERS) :]:
                for order in ORDERS:
                    aim = targets[rival].get(order)
                    what = f"{direction}_all, {order} order: rate against {rival}"
                    figures.append(self.figure(what, found, order, rival, aim))
            figures += [self.plan_off(pool, direction, order, found) for order in ORDERS]
        runs = {order: functools.partial(self.make, ranks, order) for order in ORDERS}
        runs["MPI-IO"] = functools.partial(self.mpi, ranks, "mpi_write", view | {"anew": True})
        runs |= self.disk("write", self.flat.with_suffix(".fio"), anew=True)
        found = alternate("write what is new", runs, rounds=rounds, show=rate)
        for rival in list(runs)[len(ORDERS) :]:
            for order in ORDERS:
                what = f"write_all of a new array, {order} order: rate against {rival}, a new file"
                aim = 5 if rival == "MPI-IO" else OF_DISK
                figures.append(self.figure(what, found, order, rival, aim))
        return figures

    def disk(
        self, direction: str, path: Path, *, anew: bool = False
    ) -> dict[str, Callable[[], float]]:
        """Bytes per second of fio, moving as many bytes as the array has; empty without fio."""
        if not fio.is_installed():
            return {}
        block_bytes = min(FIO_BLOCK_BYTES, self.nbytes // FIO_THREADS)
        one = fio.Fio(path, self.nbytes, block_bytes, FIO_THREADS, huge_pages=True, anew=anew)
        return {"the disk's": functools.partial(one.rate, direction)}

    def plan_off(self, pool: oc.Pool, direction: str, order: str, found: Rounds) -> Figure:
        """Return the error of the plan's time, at the pool's previously measured rates."""
        plan = oc.plan(
            "write_all" if direction == "write" else "read_all",
            array=pool / order,
            schema=oc.Schema(WORDS, mesh=MESH),
            processes=math.prod(MESH),
        )
        seconds = [self.nbytes / each for each in found.measures[order]]
        return Figure(
            f"{self.side}³ float64, {direction}_all, {order} order: plan's time off by",
            [abs(plan.seconds / each - 1) * 100 for each in seconds],
            unit="%",
            ours=f"planned {plan.seconds:.2f} s",
            rival=f"took {statistics.median(seconds):.2f} s",
            details={"plan": plan.to_dict()},
        )

    def make(self, ranks: Ranks, order: str) -> float:
        """Return bytes per second of creating an array and writing it."""
        shape = [self.side] * 3
        return self.nbytes / ranks.seconds(
            "make", name="new", shape=shape, disk=on_disk(order), schema=WORDS, mesh=MESH
        )

    def without_disks(self, ranks: Ranks, rounds: int) -> list[Figure]:
        """Compare the rate without disks with the rate of TCP."""
        figures = []
        if not iperf3.is_installed():
            return [Figure("collectives without disks", skipped="there is no iperf3")]
        for direction in ("write", "read"):
            runs = {order: self.run(ranks, direction, order, skip_disk=True) for order in FAST_DISK}
            runs["TCP"] = lambda: iperf3.rate("127.0.0.1", seconds=2)
            found = alternate(f"{direction} without disks", runs, rounds=rounds, show=rate)
            for order, target in FAST_DISK.items():
                what = f"{direction}_all, {order} order, without disks: rate against TCP's"
                figures.append(self.figure(what, found, order, "TCP", target))
        return figures

    def imbalance(self, pool: oc.Pool, ranks: Ranks) -> Figure:
        """Return the bytes of the fullest server over the mean, for chunks that do not divide
        evenly.
        """
        plan = oc.plan(
            "read_all",
            array=pool / "uneven",
            schema=oc.Schema(WORDS, mesh=MESH),
            processes=math.prod(MESH),
        )
        counts = [np.array([server.bytes_read for server in pool.servers()])]
        for work in (
            functools.partial(ranks.seconds, "open", name="uneven"),
            self.run(ranks, "read", "uneven", skip_disk=True),
        ):
            work()
            counts.append(np.array([server.bytes_read for server in pool.servers()]))
        opening, all_of_it = np.diff(counts, axis=0)
        moved = all_of_it - opening
        measured = float(moved.max() / moved.mean())
        return Figure(
            f"{self.side}³ float64, three blocks on two servers: imbalance, measured / planned",
            [measured / plan.imbalance],
            Target("=", 1),
            ours=f"{measured:.6f}",
            rival=f"{plan.imbalance:.6f}",
        )

    def run(
        self, ranks: Ranks, direction: str, order: str, *, skip_disk: bool = False
    ) -> Callable[[], float]:
        """Return bytes per second of a collective."""
        return lambda: (
            self.nbytes
            / ranks.seconds(direction, name=order, schema=WORDS, mesh=MESH, skip_disk=skip_disk)
        )

    def alone(self, one: PoolClient, whole: dict[str, Any]) -> float:
        """Return bytes per second of one process."""
        return self.nbytes / one.seconds(**whole)

    def mpi(self, ranks: Ranks, do: str, view: dict[str, Any]) -> float:
        """Return bytes per second of MPI-IO. Reads come from the disk, not from memory."""
        if do == "mpi_read":
            drop_from_memory(self.flat)
        return self.nbytes / ranks.seconds(do, **view)

    def figure(
        self, what: str, found: Rounds, ours: str, rival: str, least: float | None
    ) -> Figure:
        """Return one ratio of rates, and its least value."""
        return Figure(
            f"{self.side}³ float64, {math.prod(MESH)} processes, {what}",
            found.ratios(ours, rival),
            None if least is None else Target("≥", least),
            ours=rate(found.median(ours)),
            rival=rate(found.median(rival)),
            details=dict(found.measures),
        )


def drop_from_memory(path: Path) -> None:
    """Drop the cached pages of a file."""

    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main("collective", measure)
