"""A process that multiplies arrays on disk with outcore: ``A B OUT BUDGET_BYTES``."""

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.machine import touch_memory
from benchmarks.matmul_in_core import some_rows
from benchmarks.matrices import clear
from outcore.linalg._products.matmul import matmul


def main(a: str, b: str, out: str, memory: int) -> None:
    clear(Path(out))
    touch_memory(memory)
    start = time.perf_counter()
    C = matmul(Path(a), Path(b), out=out, memory=memory, progress=False)
    seconds = time.perf_counter() - start
    rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {**C.report.to_dict(), "seconds": seconds, "rss_bytes": rss_bytes}
    print(json.dumps(found | {"rows": some_rows(C)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
