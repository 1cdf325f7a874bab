"""``outcore mkdir``."""

import os
from pathlib import Path

import click

from outcore.cli.invocation import json_option
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.errors import ExistsError, NotFoundError
from outcore.files.attributes import set_mode
from outcore.files.modes import changed_mode, check_mode, current_umask
from outcore.files.status import cannot
from outcore.pool_path import PoolPath
from outcore.volumes import AnyPath, is_there

_MOST_NEW = 16


@click.command("mkdir", short_help="Make directories.")
@paths_argument
@click.option("-p", "--parents", is_flag=True, help="Those above too; one that is there is fine.")
@click.option("-m", "--mode", metavar="MODE", help="Its mode, as chmod takes it.")
@key_option
@json_option
def command(paths: tuple[AnyPath, ...], parents: bool, mode: str | None, as_json: bool) -> None:
    """Make a directory at each PATH."""
    if mode is not None:
        check_mode(mode)
    failures = Failures(as_json=as_json)
    made: list[str] = []
    for path in paths:
        with failures.noted(path):
            if is_there(path) and not (parents and path.is_dir()):
                raise ExistsError(f"{path} exists; choose another name")
            if not is_there(path):
                _make(path, parents)
                if mode is not None:
                    bits = changed_mode(mode, 0o777, is_directory=True, umask=current_umask())
                    set_mode(path, bits)
                made.append(os.fspath(path))
    failures.end({"made": made})


def _make(path: AnyPath, parents: bool) -> None:
    if isinstance(path, PoolPath):
        if not parents and not path.parent.is_dir():
            raise NotFoundError(f"there is no directory {path.parent}; make it first, or pass -p")
        # The manager makes as many at once at most.
        for above in path.parents[-1 - _MOST_NEW : 0 : -_MOST_NEW]:
            if not above.exists():
                above.root.core.make_directory(above.inside)
        path.root.core.make_directory(path.inside)
        return
    try:
        Path(path).mkdir(parents=parents)
    except OSError as error:
        raise cannot(f"make the directory {path}", error) from None
