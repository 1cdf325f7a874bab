"""A mounted pool on this machine: large calls, `cp`, and `tar` of many small files.

The rivals are the Python client and `outcore cp` for the same pool, and the file system of the
directory with an fsync for each file.
"""

import functools
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Contender, alternate
from outcore.pool import local_pool
from outcore.pool import state as pool_state
from outcore.pool.mounting import mounted_at, start_mount, unmount

CALL_BYTES = 1 << 20
JOBS = 2
MOVED_BYTES = {"full": 2 << 30, "quick": 256 << 20, "tiny": 4 << 20}
COPIED_BYTES = {"full": 4 << 30, "quick": 256 << 20, "tiny": 4 << 20}
FILES = {"full": 10_000, "quick": 1000, "tiny": 20}
FILE_BYTES = 4096
ALIGNED = "whole pages"
MEMORY: dict[str, Callable[[], Any]] = {
    # As fio has it. The kernel divides a call of 1 MiB with other memory in two.
    ALIGNED: functools.partial(mmap.mmap, -1, CALL_BYTES),
    "any memory": functools.partial(bytearray, CALL_BYTES),
}
MOUNT, CLIENT, COMMAND, DISK = "mount", "client", "outcore cp", "file system"


def measure(setting: Setting) -> Outcome:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return Outcome([Figure("a mounted pool", skipped="/dev/fuse cannot be used")])
    directories = [setting.scratch / "a", setting.scratch / "b"]
    daemons = list(local_pool.start(directories, "127.0.0.1:0"))
    try:
        tcp = next(name for name in daemons[0].addresses if name.startswith("tcp:"))
        url = f"outcore://{tcp.removeprefix('tcp:')}"
        key = directories[0] / pool_state.STATE / pool_state.KEY
        with oc.connect(url, key=key) as pool, mounted(url, key, setting.scratch / "m") as place:
            figures = [
                each
                for memory, make in MEMORY.items()
                for each in moved(setting, pool, place, memory, make)
            ]
            figures += copied(setting, url, key, place)
            return Outcome([*figures, unpacked(setting, place)])
    finally:
        local_pool.stop(directories[0])


@contextmanager
def mounted(url: str, key: Path, place: Path) -> Iterator[Path]:
    """Mount a pool."""
    place.mkdir()
    start_mount(["--key", str(key), "--", url, str(place)], place)
    try:
        yield place
    finally:
        if mounted_at(place) is not None:
            unmount(place, lazy=True)


def rounds_of(setting: Setting) -> int:
    return 1 if setting.size == "tiny" else 5


def rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:.2f} GB/s"


def moved(
    setting: Setting, pool: oc.Pool, place: Path, memory: str, make: Callable[[], Any]
) -> list[Figure]:
    """Write and read a file by calls of 1 MiB from two threads."""
    nbytes = MOVED_BYTES[setting.size]
    content, buffers = make(), [make() for _ in range(JOBS)]
    data = np.frombuffer(content, np.uint8)
    data[:] = np.random.default_rng(1).integers(0, 256, CALL_BYTES, dtype=np.uint8)

    def seconds(call: Callable[[int, int], object]) -> float:
        def job(number: int) -> None:
            for at in range(number * CALL_BYTES, nbytes, JOBS * CALL_BYTES):
                call(number, at)

        start = time.perf_counter()
        with ThreadPoolExecutor(JOBS) as threads:
            list(threads.map(job, range(JOBS)))
        return time.perf_counter() - start

    def of_mount(direction: str) -> float:
        fd = os.open(place / "moved", os.O_CREAT | os.O_RDWR)
        try:
            if direction == "write":
                return nbytes / seconds(lambda _, at: os.pwrite(fd, content, at))
            return nbytes / seconds(lambda job, at: os.preadv(fd, [buffers[job]], at))
        finally:
            os.close(fd)

    def of_client(direction: str) -> float:
        with pool.open("moved-by-client", "w" if direction == "write" else "r") as file:
            if direction == "write":
                return nbytes / seconds(lambda _, at: file.write_at(at, data))
            return nbytes / seconds(
                lambda job, at: file.read_at(at, out=np.frombuffer(buffers[job], np.uint8))
            )

    figures = []
    for direction in ("write", "read"):
        runs: dict[str, Contender] = {
            MOUNT: functools.partial(of_mount, direction),
            CLIENT: functools.partial(of_client, direction),
        }
        what = f"{direction} by calls of 1 MiB from {JOBS} threads, {memory}: rate on a mount"
        aim = 0.75 if memory == ALIGNED else None
        figures.append(figure(setting, f"{what} against the client", runs, CLIENT, aim, rate))
    return figures


def copied(setting: Setting, url: str, key: Path, place: Path) -> list[Figure]:
    """Copy a file into the pool and out of it, until it is durable."""
    nbytes = COPIED_BYTES[setting.size]
    source, target = setting.scratch / "source", setting.scratch / "target"
    block = os.urandom(1 << 20)
    with source.open("wb") as file:
        for _ in range(nbytes >> 20):
            file.write(block)
    environment = setting.child_environment() | {"OUTCORE_KEY": str(key)}

    def cp(from_: Path, to: Path) -> float:
        to.unlink(missing_ok=True)
        start = time.perf_counter()
        subprocess.run(["cp", from_, to], check=True)
        with to.open("rb+") as file:
            os.fsync(file.fileno())
        return nbytes / (time.perf_counter() - start)

    def command(from_: object, to: object) -> float:
        words = [
            str(Path(sys.executable).with_name("outcore")),
            "cp",
            "--overwrite",
            str(from_),
            str(to),
        ]
        start = time.perf_counter()
        subprocess.run(words, check=True, env=environment, capture_output=True)
        return nbytes / (time.perf_counter() - start)

    into: dict[str, Contender] = {
        MOUNT: lambda: cp(source, place / "copied"),
        COMMAND: lambda: command(source, f"{url}/copied-by-command"),
    }
    out_of: dict[str, Contender] = {
        MOUNT: lambda: cp(place / "copied", target),
        COMMAND: lambda: command(f"{url}/copied-by-command", target),
    }
    size = f"{nbytes >> 20} MiB"
    return [
        figure(
            setting, f"cp of {size} to a mount against outcore cp: rate", into, COMMAND, 0.7, rate
        ),
        figure(
            setting,
            f"cp of {size} from a mount against outcore cp: rate",
            out_of,
            COMMAND,
            0.7,
            rate,
        ),
    ]


def unpacked(setting: Setting, place: Path) -> Figure:
    """Unpack many small files."""
    count = FILES[setting.size]
    source, archive = setting.scratch / "files", setting.scratch / "files.tar"
    source.mkdir()
    for number in range(count):
        (source / f"f{number:05}").write_bytes(os.urandom(FILE_BYTES))
    subprocess.run(["tar", "cf", archive, "-C", setting.scratch, "files"], check=True)
    on_disk = setting.scratch / "unpacked"
    on_disk.mkdir()

    def of_mount() -> float:
        shutil.rmtree(place / "files", ignore_errors=True)
        start = time.perf_counter()
        subprocess.run(["tar", "xf", archive, "-C", place], check=True)
        return count / (time.perf_counter() - start)

    def of_disk() -> float:
        shutil.rmtree(on_disk / "files", ignore_errors=True)
        (on_disk / "files").mkdir()
        start = time.perf_counter()
        for path in sorted(source.iterdir()):
            fd = os.open(on_disk / "files" / path.name, os.O_CREAT | os.O_WRONLY)
            os.write(fd, path.read_bytes())
            os.fsync(fd)
            os.close(fd)
        return count / (time.perf_counter() - start)

    what = f"tar x of {count} files of 4 KiB on a mount: files a second"
    runs: dict[str, Contender] = {MOUNT: of_mount, DISK: of_disk}
    return figure(
        setting, f"{what}, against the file system with an fsync each", runs, DISK, 0.5, a_second
    )


def a_second(value: float) -> str:
    return f"{value:.0f} a second"


def figure(
    setting: Setting,
    what: str,
    runs: dict[str, Contender],
    rival: str,
    at_least: float | None,
    show: Callable[[float], str],
) -> Figure:
    found = alternate(what, runs, rounds=rounds_of(setting), show=show)
    return Figure(
        what,
        found.ratios(MOUNT, rival),
        None if at_least is None else Target("≥", at_least),
        ours=show(found.median(MOUNT)),
        rival=show(found.median(rival)),
        details=dict(found.measures),
    )


if __name__ == "__main__":
    main("mount", measure)
