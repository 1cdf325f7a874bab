"""The machine of a benchmark: hardware, file system, versions."""

import datetime
import importlib.metadata
import mmap
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from outcore.blas import blas_choice
from outcore.machine.machine import mount_of, usable_cores

PACKAGES = ("outcore", "numpy", "scipy", "zarr", "tensorstore", "dask")


def describe(directory: Path) -> dict[str, Any]:
    """Describe this machine, and the disk of `directory`."""
    mount = mount_of(directory)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file_system": mount.fs_type if mount else "unknown",
        "blas": _blas(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES} | {"fio": _fio_version()},
    }


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _field(path: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else "unknown"


def _blas() -> str:
    kernels, threads = blas_choice.in_use()
    return f"{kernels}, {threads} threads"


def _fio_version() -> str:
    if shutil.which("fio") is None:
        return "not installed"
    run = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=False)
    return run.stdout.strip().removeprefix("fio-")


def touch_memory(nbytes: int) -> None:
    """Allocate the given amount of memory, touch all of it, and free it.

    Memory that a virtual machine has returned to its host comes back at less than 1 GB/s, at the
    first touch. A rival in memory does this before its clock starts, because its matrix is there;
    so the out-of-core run must do it, too.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, nbytes, mmap.PAGESIZE):
        memory[page] = 1
    memory.close()
