"""Arrays larger than memory, and solvers that run out of core at in-core speed."""

from . import errors, linalg
from .array.advise import Advice, advise
from .array.array import Array, open_array
from .array.create import create_array, create_group
from .array.info import Info
from .array.several_arrays import create_arrays
from .array.verification import Verification, verify
from .blocks.blocks import Blocks
from .blocks.file import BlockInterface
from .convert.export import export_array
from .convert.from_array import from_array
from .convert.rechunk import rechunk
from .convert.repack import Repacked, repack
from .errors import OutcoreError
from .files.copy import FileCopyReport, copy_files
from .files.move import move_files
from .layout.distribution import Distribution, distribute
from .layout.schema import Schema
from .machine.rates import Rates
from .permutations.bit_matrices import bit_inverse, bit_matrix, bit_product
from .permutations.permute import permute
from .planning.collective_plan import CollectivePlan
from .planning.methods import MethodComparison, compare_methods
from .planning.permute_plan import PermutePlan
from .planning.plan import Plan, plan
from .planning.relayout_plan import RelayoutPlan
from .pool.connect import connect
from .pool.found import Found
from .pool.logical_disk import LogicalDisk
from .pool.pool import Pool
from .report.chrome_trace import chrome_trace
from .report.collective_report import CollectiveReport
from .report.copy_report import CopyReport
from .report.permute_report import PermuteReport
from .report.report import Report, last_report
from .series.array_group import ArrayGroup
from .series.array_spec import ArraySpec
from .storage.pool_file import PoolFile
from .storage.pool_future import PoolFuture
from .storage.pool_path import PoolPath
from .storage.pool_stat import PoolStat

__all__ = [
    "Advice",
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
    "Found",
    "Info",
    "LogicalDisk",
    "MethodComparison",
    "OutcoreError",
    "PermutePlan",
    "PermuteReport",
    "Plan",
    "Pool",
    "PoolFile",
    "PoolFuture",
    "PoolPath",
    "PoolStat",
    "Rates",
    "RelayoutPlan",
    "Repacked",
    "Report",
    "Schema",
    "Verification",
    "advise",
    "bit_inverse",
    "bit_matrix",
    "bit_product",
    "chrome_trace",
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
    "permute",
    "plan",
    "rechunk",
    "repack",
    "verify",
]

__version__: str
