"""fio: the reference for disk rates."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


def is_installed() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


@dataclass(frozen=True)
class Fio:
    """Direct I/O over the first `nbytes` of a file that exists, by `threads` of blocking calls.

    With ``anew`` the pass creates the file, which allocates its space during the writes.

    The number of pieces of a disk request depends on the pages of its memory. With ``huge_pages``
    fio's buffers lie in huge pages (with glibc 2.35 or later), as ours do, and its requests are
    larger.
    """

    path: Path
    nbytes: int
    block_bytes: int
    threads: int
    huge_pages: bool
    anew: bool = False

    def rate(self, direction: str) -> float:
        """Return bytes per second of one pass, ``"read"`` or ``"write"``, including its sync."""
        share = self.nbytes // self.threads
        if self.anew:
            self.path.unlink(missing_ok=True)
        arguments = {
            "name": "bench",
            "filename": str(self.path).replace(":", r"\:"),
            "rw": direction,
            "bs": self.block_bytes,
            "size": share,
            "offset_increment": share,
            "numjobs": self.threads,
            "ioengine": "psync",
            "direct": 1,
            "thread": 1,
            "group_reporting": 1,
            "fallocate": "none",
            "allow_file_create": int(self.anew),
            "end_fsync": int(direction == "write"),
        }
        environment = dict(os.environ)
        if self.huge_pages:
            arguments["iomem_align"] = "2M"
            environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        run = subprocess.run(
            ["fio", "--output-format=json", *(f"--{k}={v}" for k, v in arguments.items())],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        (job,) = json.loads(run.stdout[run.stdout.index("{") :])["jobs"]
        if job[direction]["io_bytes"] != self.nbytes:
            raise RuntimeError(f"fio moved {job[direction]['io_bytes']} bytes of {self.nbytes}")
        return float(self.nbytes / (job[direction]["runtime"] / 1e3))
