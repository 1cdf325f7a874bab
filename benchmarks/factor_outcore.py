"""A process that factors an array on disk with outcore: ``PATH OUT BUDGET_BYTES``."""

import json
import resource
import sys
import time
from pathlib import Path

import outcore as oc
from benchmarks.matrices import clear


def main(path: str, out: str, memory: int) -> None:
    clear(Path(out))
    start = time.perf_counter()
    factor = oc.linalg.lu_factor(path, memory=memory, out=out, progress=False)
    seconds = time.perf_counter() - start
    if factor.report is None:
        raise AssertionError("a factorization reports")
    rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rss_bytes": rss_bytes, **factor.report.to_dict()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
