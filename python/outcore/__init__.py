"""Arrays larger than memory, and solvers that run out of core at in-core speed.

Source: the README has a quick start; ``docs/`` has the formats, semantics and how-to pages.
"""

import sys

if sys.platform != "linux":
    raise ImportError("outcore runs on Linux only: it needs O_DIRECT, fallocate and flock")

from outcore.blas import blas_choice

# OpenBLAS picks its kernels when it is loaded; the imports below load it.
blas_choice.choose()

from outcore import errors, linalg  # noqa: E402
from outcore.array.array import Array, open_array  # noqa: E402
from outcore.array.create import create_array, create_group  # noqa: E402
from outcore.array.info import Info  # noqa: E402
from outcore.array.several_arrays import create_arrays  # noqa: E402
from outcore.array.verification import Verification, verify  # noqa: E402
from outcore.blocks.blocks import Blocks  # noqa: E402
from outcore.blocks.file import BlockInterface  # noqa: E402
from outcore.convert.copying import from_array  # noqa: E402
from outcore.convert.export import export_array  # noqa: E402
from outcore.convert.repack import Repacked, repack  # noqa: E402
from outcore.errors import OutcoreError  # noqa: E402
from outcore.files.copy import FileCopyReport, copy_files  # noqa: E402
from outcore.files.move import move_files  # noqa: E402
from outcore.layout.distribution import Distribution, distribute  # noqa: E402
from outcore.layout.schema import Schema  # noqa: E402
from outcore.machine.rates import Rates  # noqa: E402
from outcore.planning.collective_plan import CollectivePlan  # noqa: E402
from outcore.planning.methods import MethodComparison, compare_methods  # noqa: E402
from outcore.planning.plan import Plan, plan  # noqa: E402
from outcore.pool.connect import connect  # noqa: E402
from outcore.pool.logical_disk import LogicalDisk  # noqa: E402
from outcore.pool.pool import Pool  # noqa: E402
from outcore.report.collective_report import CollectiveReport  # noqa: E402
from outcore.report.copy_report import CopyReport  # noqa: E402
from outcore.report.report import Report, last_report  # noqa: E402
from outcore.series.array_group import ArrayGroup  # noqa: E402
from outcore.series.array_spec import ArraySpec  # noqa: E402
from outcore.storage.pool_file import PoolFile  # noqa: E402
from outcore.storage.pool_future import PoolFuture  # noqa: E402
from outcore.storage.pool_path import PoolPath  # noqa: E402
from outcore.storage.pool_stat import PoolStat  # noqa: E402
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
