"""``outcore solve``."""

import contextlib
from typing import Any

import click
import numpy as np

from outcore._util.if_exists import Replace
from outcore._util.launchers import world
from outcore._util.printable import as_line
from outcore.array.array import Array, open_array
from outcore.array_files.metadata import read_metadata
from outcore.cli.places import ANY_PATH, key_option, overwrite_option
from outcore.cli.side_files import check_side_files, check_writable, side_file_options, traced
from outcore.cli.verbs import Verb, end, run_as, say, wants_json
from outcore.convert.export import export_array
from outcore.errors import InvalidError, NotFoundError, OutcoreError
from outcore.linalg._output.factor import remove_factors
from outcore.linalg._systems.plan import ASSUMPTIONS
from outcore.linalg._systems.solve import solve_system
from outcore.planning.plan import Plan, plan
from outcore.processes.sharing import Sharing, interrupted, seconds_for
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, Place, as_path, place


@click.command(
    "solve",
    cls=Verb,
    short_help="Solve A x = b with a matrix on disk.",
    example="outcore solve A b.npy -o x.npy --memory 8GB",
    groups={
        "System": ("assume_a", "factor_dtype", "condition"),
        "Files": ("output", "if_exists", "factors", "keep_factors", "overwrite_a"),
        "Output": ("report_path", "trace_path"),
    },
)
@click.argument("a", metavar="A", type=ANY_PATH)
@click.argument("b", metavar="B", type=ANY_PATH)
@click.option("-o", "--output", required=True, type=ANY_PATH, help="The solution x.")
@click.option("--memory", help="Budget, such as 8GB.  [default: half of the available memory]")
@click.option(
    "--assume-a", type=click.Choice(ASSUMPTIONS), default="gen", show_default=True,
    help="Structure of A: Cholesky solves pos, LU the others; auto examines A.",
)  # fmt: skip
@click.option(
    "--factor-dtype", metavar="f4|c8", help="Factor in single precision, and refine in double."
)
@click.option("--condition", is_flag=True, help="Estimate the condition number of A too.")
@click.option(
    "--factors", type=ANY_PATH,
    help="Directory for the factors.  [default: A's name with a suffix]",
)  # fmt: skip
@click.option("--keep-factors", is_flag=True, help="Keep the factors for later calls.")
@overwrite_option(help="Replace an existing solution or existing factors.")
@click.option(
    "--overwrite-a",
    is_flag=True,
    help="Store the factors in the space of A, whose elements are lost.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the BLAS.")
@side_file_options
@key_option
def command(
    a: AnyPath,
    b: AnyPath,
    output: AnyPath,
    memory: str | None,
    assume_a: Any,
    factor_dtype: str | None,
    condition: bool,
    factors: AnyPath | None,
    keep_factors: bool,
    if_exists: Replace,
    overwrite_a: bool,
    threads: int | None,
    report_path: AnyPath | None,
    trace_path: AnyPath | None,
) -> None:
    """Solve A x = b for the matrix in the array A and the right-hand sides B.

    B is an array of outcore or a .npy file. x is a .npy file if its name ends in .npy, else an
    array. A .npy file x is in memory while the system is solved. If the command is stopped, run it
    again to resume. All arrays may be in pools, by their URLs; .npy files are plain ones.

    Started by mpiexec, as in `mpiexec -n 4 outcore solve A b.npy -o x.npy`, all processes work
    together; memory and threads are those of each. All must reach the files.
    """
    comm = world()
    is_first = comm is None or comm.Get_rank() == 0
    if comm is not None:
        run_as(comm.Get_rank())
    options: dict[str, Any] = {"factor_dtype": factor_dtype} if factor_dtype else {}
    is_plain = output.suffix == ".npy"
    # On other machines than this one, files may be missing: an error of one process is one of all.
    with Sharing(comm) as sharing:
        if is_plain and isinstance(output, PoolPath):
            raise _no_plain_file(output)
        check_writable(output, overwrite=if_exists == "overwrite" or not is_plain)
        others = {"A": a, "B": b, "the output": output, "the factors": factors}
        if is_first:  # It writes them.
            check_side_files(report_path, trace_path, others)
        rhs = _right_hand_side(b, in_memory=is_plain)
        planned = _planned(
            a, rhs, factors, sharing.budget(memory), sharing.size,
            options | {"assume_a": assume_a, "overwrite_a": overwrite_a, "condition": condition},
        )  # fmt: skip
    if planned:
        say(planned.summary)
    try:
        # The factors stay until x is in its file: if that fails, x can be solved for again.
        left: list[Place] = []
        with traced(trace_path, comm):
            x, report = solve_system(
                a, rhs, assume_a=assume_a, memory=memory, out=None if is_plain else output,
                factors=factors, keep_factors=keep_factors, overwrite_a=overwrite_a,
                if_exists=if_exists, threads=threads, progress=not wants_json(),
                condition=condition, later=left, comm=comm, **options,
            )  # fmt: skip
            # The processes end the trace together, or none of them does. x is safe before that.
            with Sharing(comm) as sharing:
                if is_plain and is_first:
                    export_array(x, output, format="npy", if_exists=if_exists, progress=False)
                for where in left:
                    remove_factors(where)
                if report_path and is_first:
                    report.save(report_path)
                sharing.meet(seconds_for(x.nbytes if is_plain else 0))
    except KeyboardInterrupt as stop:
        fix = "run the same command again to resume"
        raise interrupted(f"solving with {a.name}", stop, fix) from None
    plan_values = planned.to_dict() if planned else None
    end(
        {"x": output, "plan": plan_values, "report": report.to_dict()},
        f"{report}\nx is in {as_line(str(output))}",
    )


def _right_hand_side(path: AnyPath, *, in_memory: bool) -> Any:
    if path.suffix != ".npy":
        array = open_array(path)
        return array[...] if in_memory else array
    if isinstance(path, PoolPath):
        raise _no_plain_file(path)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; check the path") from None
    except (ValueError, EOFError) as error:
        raise InvalidError(f"{path} cannot be read as a .npy file: {error}") from None


def _no_plain_file(path: PoolPath) -> InvalidError:
    return InvalidError(
        f"a .npy file is a plain one, have {path}; name an array in the pool, without .npy"
    )


def _planned(
    a: AnyPath,
    rhs: Any,
    factors: AnyPath | None,
    memory: int,
    processes: int,
    options: dict[str, Any],
) -> Plan | None:
    """Plan the call; `None` if the call will fail, since its own error is clearer."""
    with contextlib.suppress(OutcoreError):
        metadata = read_metadata(place(a))
        columns = rhs.shape[1] if isinstance(rhs, Array | np.ndarray) and rhs.ndim == 2 else 1
        return plan(
            "solve", n=metadata.shape[0], dtype=metadata.dtype, memory=memory, rhs=columns,
            path=as_path(factors or a).parent, order=metadata.order, chunks=metadata.chunks,
            processes=processes, **options,
        )  # fmt: skip
    return None
