"""Files that a verb writes beside its result: the report of its call, and a trace of its work."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import click

from outcore.cli.places import ANY_PATH
from outcore.errors import ExistsError, InvalidError, NotFoundError, ReadOnlyError
from outcore.machine.machine import nearest_directory
from outcore.report import chrome_trace, report_file
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, how_they_meet

_Command = TypeVar("_Command", bound=Callable[..., Any])


def side_file_options(command: _Command) -> _Command:
    """Add the options ``--report`` and ``--trace``, which give `report_path` and `trace_path`."""
    # The last one added comes first in the help.
    trace = click.option(
        "--trace", "trace_path", metavar="FILE", type=ANY_PATH,
        help="Save a trace of all processes and I/O servers, for ui.perfetto.dev.",
    )  # fmt: skip
    report = click.option(
        "--report", "report_path", metavar="FILE", type=ANY_PATH,
        help="Save the report, for `outcore report FILE`.",
    )  # fmt: skip
    return report(trace(command))


def check_side_files(
    report: AnyPath | None, trace: AnyPath | None, others: Mapping[str, AnyPath | None]
) -> None:
    """Refuse to write a report or trace over any file but its like, or into an array.

    Parameters
    ----------
    report, trace
        Files that the verb writes, if any.
    others
        Paths that it reads or writes, by their names in errors.
    """
    for what, path, beside in (
        ("report", report, others), ("trace", trace, {**others, "the report": report}),
    ):  # fmt: skip
        if path is None:
            continue
        report_file.check_file(path, what)
        check_writable(path, overwrite=True)
        if not path.parent.is_dir() and what == "trace":
            raise NotFoundError(f"there is no directory {path.parent}; make it first")
        for name, other in beside.items():
            if other is not None and (meets := how_they_meet(path, other)):
                raise InvalidError(
                    f"the {what} in {path} {meets} {name} in {other}; name another file"
                )
    if report is not None:
        report_file.check_replaceable(report)
    if trace is not None:
        chrome_trace.check_replaceable(trace)


def traced(path: AnyPath | None, comm: Any) -> AbstractContextManager[None]:
    """Return a context that records its block in a trace, if the user named a file for one.

    All processes of the communicator enter and leave it.
    """
    return nullcontext() if path is None else chrome_trace.chrome_trace(path, comm)


def check_writable(path: AnyPath, *, overwrite: bool) -> None:
    """Refuse a plain file that cannot be written, before the hours of the work.

    Names in pools pass: the call checks them with its result.
    """
    if isinstance(path, PoolPath):
        return
    if path.suffix == ".npy" and path.exists() and not path.is_file():
        raise ExistsError(f"{path} exists and is no file; choose another name")
    if path.is_file() and not overwrite:
        raise ExistsError(f"{path} exists; choose another name, or pass --overwrite")
    above = nearest_directory(path.absolute().parent)
    if path.suffix == ".npy" and above != path.absolute().parent:
        raise NotFoundError(f"there is no directory {path.absolute().parent}; make it first")
    if not os.access(above, os.W_OK):
        raise ReadOnlyError(f"cannot write {path}: {above} is not writable; choose another name")
