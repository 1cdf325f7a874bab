"""``outcore plan``."""

from typing import Any

import click

from outcore.cli.places import ANY_PATH, key_option
from outcore.cli.verbs import Verb, end
from outcore.linalg._planners.planners import FUNCTIONS, PLANNERS
from outcore.linalg._tiles.cost import SWEEPS
from outcore.planning.methods import COMPARABLE, compare_methods
from outcore.planning.plan import plan
from outcore.planning.processes import compare_processes
from outcore.storage.volumes import AnyPath

_LAYOUT = {"order", "chunks"}
"""Options that are valid with ``--compare``."""

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}


def _options(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` with a number, boolean, None or integers as VALUE; others are text."""
    found = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if "," in text and all(part.isdecimal() for part in text.split(",")):
        return tuple(map(int, text.split(",")))
    return text


def _numbers(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[int, ...]:
    """Parse numbers of processes, divided by commas."""
    texts = given.split(",") if given else []
    if not all(text.strip().isdecimal() and int(text) > 0 for text in texts):
        raise click.BadParameter(f"need numbers from 1 on, such as 1,2,4,8, have {given!r}")
    return tuple(map(int, texts))


@click.command(
    "plan",
    cls=Verb,
    short_help="State memory, disk space and time of a job before it starts.",
    example="outcore plan lu -n 100000 --dtype c16 --memory 40GB /scratch",
    groups={
        "Problem": ("n", "m", "k", "dtype", "rhs"),
        "Method": ("method", "overwrite_a", "options", "compare", "steps"),
        "Processes": ("processes", "link"),
    },
)
@click.argument("verb", metavar="VERB", type=click.Choice([*PLANNERS, *FUNCTIONS]))
@click.option(
    "-n",
    "--order",
    "n",
    type=int,
    required=True,
    help="Order of the matrix, or number of its columns.",
)
@click.option("-m", "--rows", "m", type=int, help="Rows of a matrix that is not square.")
@click.option("-k", type=int, help="Inner length of a product; singular values of svd.")
@click.option("--dtype", default="f8", show_default=True, help="Element type, as NumPy names it.")
@click.option("--memory", help="Budget, such as 8GB.  [default: half of the available memory]")
@click.option("--rhs", default=1, show_default=True, help="Number of right-hand sides.")
@click.option("--overwrite-a", is_flag=True, help="Store the factors in the space of the matrix.")
@click.option(
    "--method", help="Method of lu: auto, slabs, block-columns or tournament.  [default: auto]"
)
@click.option(
    "--option", "options", metavar="NAME=VALUE", multiple=True, callback=_options,
    help="Further arguments, such as assume_a=pos, sweeps=50, order=C or chunks=512,512.",
)  # fmt: skip
@click.option(
    "--compare",
    is_flag=True,
    help="Compare the methods that solve A x = b, fastest first, for a matrix in order C unless "
    "--option order=F says otherwise.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help=f"With --compare: steps of iterative methods.  [default: {SWEEPS}]",
)
@click.option(
    "--processes",
    metavar="P,...",
    callback=_numbers,
    help="Numbers of MPI processes, such as 4, or 1,2,4,8 for a table.",
)
@click.option(
    "--link", help="Rate of each process's network, such as 10Gbit/s.  [default: unlimited]"
)
@click.argument("directory", default=".", type=ANY_PATH)
@key_option
def command(
    verb: str,
    n: int,
    m: int | None,
    k: int | None,
    dtype: str,
    memory: str | None,
    rhs: int,
    overwrite_a: bool,
    method: str | None,
    options: dict[str, Any],
    compare: bool,
    steps: int | None,
    processes: tuple[int, ...],
    link: str | None,
    directory: AnyPath,
) -> None:
    """Print the resources and the time of VERB, with its files in DIRECTORY.

    VERB is a method such as lu, cholesky, qr, lstsq or gmres, or a function of oc.linalg.
    DIRECTORY is the current one by default. It may be in a pool, by its URL.

    The exit code is 1 if memory or disk space are too small. With --processes, the command does not
    check them, because the processes may be on other machines.
    """
    if overwrite_a:
        options = options | {"overwrite_a": True}
    if method is not None:
        options = options | {"method": method}
    verb = FUNCTIONS.get(verb, verb)
    if compare:
        if verb not in COMPARABLE:
            raise click.UsageError(f"--compare is for {', '.join(COMPARABLE)}")
        if options.keys() - _LAYOUT or m or k:
            raise click.UsageError(
                "--compare goes with -n, --dtype, --memory, --rhs, --steps, and --option order= "
                "and chunks="
            )
        if processes or link is not None:
            raise click.UsageError(
                "--compare is for one process; leave out --processes and --link, or --compare"
            )
        found = compare_methods(
            n=n, dtype=dtype, memory=memory, path=directory, rhs=rhs, steps=steps or SWEEPS,
            **options,
        )  # fmt: skip
        end(found.to_dict(), str(found))
        return
    if processes:
        options = options | {"processes": processes[0]}
    if link is not None:
        options = options | {"link": link}
    if steps is not None:
        raise click.UsageError(
            "--steps goes with --compare; without it, --option sweeps=N or iterations=N"
        )
    if len(processes) > 1:
        del options["processes"]
        table = compare_processes(
            verb, processes, n=n, m=m, k=k, dtype=dtype, memory=memory, path=directory, rhs=rhs,
            **options,
        )  # fmt: skip
        end(table.to_dict(), str(table))
        return
    planned = plan(
        verb, n=n, m=m, k=k, dtype=dtype, memory=memory, path=directory, rhs=rhs, **options
    )
    end(planned.to_dict(), str(planned))
    if processes in ((), (1,)):
        planned.validate()
