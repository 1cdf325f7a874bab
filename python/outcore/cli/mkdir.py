"""``outcore mkdir``."""

import os
from pathlib import Path
from typing import Any

import click

from outcore.cli.places import Failures, key_option, paths_argument, read_hints
from outcore.cli.verbs import Verb
from outcore.errors import ExistsError, InvalidError, NotFoundError
from outcore.layout.hints import hints_of
from outcore.storage.file_attributes import set_mode
from outcore.storage.file_status import cannot
from outcore.storage.modes import changed_mode, check_mode, current_umask
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, is_there

_MOST_NEW = 16


@click.command(
    "mkdir",
    cls=Verb,
    short_help="Make directories.",
    example="outcore mkdir -p outcore://node1:7171/ada/run1",
    groups={
        "Directories": ("parents", "mode", "hints"),
    },
)
@paths_argument
@click.option(
    "-p",
    "--parents",
    is_flag=True,
    help="Create missing parents too; an existing directory is no error.",
)
@click.option("-m", "--mode", metavar="MODE", help="Mode of the new directory, as for chmod.")
@click.option(
    "--hint", "hints", metavar="NAME=VALUE", multiple=True, callback=read_hints,
    help="Layout of new files below it in a pool, such as striping_unit=1MiB; with -p also for an "
    "existing directory.",
)  # fmt: skip
@key_option
def command(
    paths: tuple[AnyPath, ...],
    parents: bool,
    mode: str | None,
    hints: dict[str, Any],
) -> None:
    """Create a directory at each PATH."""
    if mode is not None:
        check_mode(mode)
    layout = hints_of(hints)
    made: list[str] = []
    failures = Failures({"made": made})
    for path in paths:
        with failures.noted(path):
            if is_there(path) and not (parents and path.is_dir()):
                raise ExistsError(f"{path} exists; choose another name")
            if hints and not isinstance(path, PoolPath):
                raise InvalidError(
                    f"--hint is for directories of a pool, have {path}; leave it out"
                )
            if not is_there(path):
                _make(path, parents)
                if mode is not None:
                    bits = changed_mode(mode, 0o777, is_directory=True, umask=current_umask())
                    set_mode(path, bits)
                made.append(os.fspath(path))
            if hints and isinstance(path, PoolPath):
                path.root.core.set_default_layout(path.inside, **layout)
    failures.end()


def _make(path: AnyPath, parents: bool) -> None:
    if isinstance(path, PoolPath):
        if not parents and not path.parent.is_dir():
            raise NotFoundError(f"there is no directory {path.parent}; make it first, or pass -p")
        # The manager creates at most this many at once.
        for above in path.parents[-1 - _MOST_NEW : 0 : -_MOST_NEW]:
            if not above.exists():
                above.root.core.make_directory(above.inside)
        path.root.core.make_directory(path.inside)
        return
    try:
        Path(path).mkdir(parents=parents)
    except OSError as error:
        raise cannot(f"make the directory {path}", error) from None
