"""Arrays larger than memory, and solvers that run out of core at in-core speed.

Source: the README has a quick start; ``docs/`` has the formats, semantics and how-to pages.
"""

import sys

if sys.platform != "linux":
    raise ImportError("outcore runs on Linux only: it needs O_DIRECT, fallocate and flock")

from outcore import blas_choice

# OpenBLAS picks its kernels when it is loaded; the imports below load it.
blas_choice.choose()

from outcore import errors, linalg  # noqa: E402
from outcore.array import Array, open_array  # noqa: E402
from outcore.array_group import ArrayGroup  # noqa: E402
from outcore.array_info import Info  # noqa: E402
from outcore.array_spec import ArraySpec  # noqa: E402
from outcore.block_file import BlockInterface  # noqa: E402
from outcore.blocks import Blocks  # noqa: E402
from outcore.collective_plan import CollectivePlan  # noqa: E402
from outcore.collective_report import CollectiveReport  # noqa: E402
from outcore.copy_report import CopyReport  # noqa: E402
from outcore.copying import from_array  # noqa: E402
from outcore.create import create_array, create_group  # noqa: E402
from outcore.distribution import Distribution, distribute  # noqa: E402
from outcore.errors import OutcoreError  # noqa: E402
from outcore.export import export_array  # noqa: E402
from outcore.files.copy import FileCopyReport, copy_files  # noqa: E402
from outcore.files.move import move_files  # noqa: E402
from outcore.logical_disk import LogicalDisk  # noqa: E402
from outcore.plan import Plan, plan  # noqa: E402
from outcore.plan_methods import MethodComparison, compare_methods  # noqa: E402
from outcore.pool import Pool  # noqa: E402
from outcore.pool_connect import connect  # noqa: E402
from outcore.pool_file import PoolFile  # noqa: E402
from outcore.pool_future import PoolFuture  # noqa: E402
from outcore.pool_path import PoolPath  # noqa: E402
from outcore.pool_stat import PoolStat  # noqa: E402
from outcore.rates import Rates  # noqa: E402
from outcore.repack import Repacked, repack  # noqa: E402
from outcore.report import Report, last_report  # noqa: E402
from outcore.schema import Schema  # noqa: E402
from outcore.several_arrays import create_arrays  # noqa: E402
from outcore.verify import Verification, verify  # noqa: E402
from outcore.version import VERSION  # noqa: E402

__all__ = [
    "Array",
    "ArrayGroup",
    "ArraySpec",
    "BlockInterface",
    "Blocks",
    "CollectivePlan",
    "CollectiveReport",
    "CopyReport",
    "Distribution",
    "FileCopyReport",
    "Info",
    "LogicalDisk",
    "MethodComparison",
    "OutcoreError",
    "Plan",
    "Pool",
    "PoolFile",
    "PoolFuture",
    "PoolPath",
    "PoolStat",
    "Rates",
    "Repacked",
    "Report",
    "Schema",
    "Verification",
    "compare_methods",
    "connect",
    "copy_files",
    "create_array",
    "create_arrays",
    "create_group",
    "distribute",
    "errors",
    "export_array",
    "from_array",
    "last_report",
    "linalg",
    "move_files",
    "open_array",
    "plan",
    "repack",
    "verify",
]
__version__ = VERSION


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
