"""A process that factors an array on disk with outcore: ``PATH OUT BUDGET_BYTES [METHOD]``."""

import json
import resource
import sys
import time
import zlib
from pathlib import Path
from typing import cast

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import clear
from outcore.linalg._lu.choice import LuMethod


def main(path: str, out: str, memory: int, method: LuMethod = "auto") -> None:
    clear(Path(out))
    touch_memory(memory)
    lu_factor = oc.linalg.lu_factor  # its imports are not timed, as the rival's are not
    start = time.perf_counter()
    factor = lu_factor(path, memory=memory, out=out, method=method, progress=False)
    seconds = time.perf_counter() - start
    if factor.report is None:
        raise AssertionError("a factorization reports")
    rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {**factor.report.to_dict(), "seconds": seconds, "rss_bytes": rss_bytes}
    print(json.dumps(found | {"piv": zlib.crc32(factor.piv.tobytes())}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *cast("list[LuMethod]", sys.argv[4:]))
