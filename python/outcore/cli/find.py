"""``outcore find``."""

import re
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, wants_json
from outcore.errors import InvalidError
from outcore.pool.found import Found
from outcore.pool.names import PoolNames
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath

_AT = re.compile(r" at character ([0-9]+) of the query ")


@click.command(
    "find",
    cls=Verb,
    short_help="Search pools by names, attributes and array metadata.",
    example="""outcore find outcore://node1:7171/ --where 'dtype = "c16" and shape[0] > 5e4'""",
    groups={"Selection": ("where",), "Output": ("print0", "is_count")},
)
@paths_argument
@click.option(
    "-w", "--where", metavar="QUERY", default="", help="Conditions.  [default: everything]"
)
@click.option("-0", "--print0", is_flag=True, help="End each path by a zero byte, for xargs -0.")
@click.option("-c", "--count", "is_count", is_flag=True, help="Print the number of paths only.")
@key_option
def command(paths: tuple[AnyPath, ...], where: str, print0: bool, is_count: bool) -> None:
    """Print the sorted paths in pools for which a query holds.

    The search includes each PATH and everything below it. A query compares fields with numbers,
    times and texts by = != < <= > >=, and texts with patterns by ~. Its conditions are joined by
    and, or, not and parentheses. The fields are name, path, kind, size, owner, owner_group, mtime,
    ctime, stripe_unit_bytes, stripe_count, server, and attr.NAME for an extended attribute; of
    arrays dtype, shape, shape[0] for one element, chunks, dims, ndim, group, order, chunk_order,
    state and steps; of reports method, residual, condition and time. The command finds what you may
    list and read. The exit code is 1 if a PATH cannot be searched.
    """
    document: dict[str, Any] = {"count": 0, "entries": []}
    failures = Failures(document)
    found: dict[str, Found] = {}
    for path in failures.expanded(paths):
        with failures.noted(path):
            # A path may lie below another one.
            found |= {str(each.path): each for each in _search(path, where)}
    entries = [found[name] for name in sorted(found)]
    document["count"] = len(entries)
    document["entries"] = [_to_dict(each) for each in entries]
    if is_count and not wants_json():
        click.echo(len(entries))
    elif not wants_json():
        for each in entries:
            _print(str(each.path), print0=print0)
    failures.end()


def _search(path: AnyPath, where: str) -> list[Found]:
    if not isinstance(path, PoolPath):
        raise InvalidError(f"searches are in pools only, have {path}; use find(1) in a file system")
    try:
        return PoolNames(path.root).find(path, where)
    except InvalidError as error:
        if place := _AT.search(str(error)):
            from rich.cells import cell_len  # slow to import

            blanks = " " * cell_len(as_line(where[: int(place[1]) - 1]))
            click.echo(f"{as_line(where)}\n{blanks}^", err=True)
        raise


def _print(path: str, *, print0: bool) -> None:
    # With color=True, click leaves control sequences in the text.
    click.echo(f"{path}\0" if print0 else as_line(path), nl=not print0, color=True)


def _to_dict(found: Found) -> dict[str, Any]:
    stat = found.stat
    return {
        "path": str(found.path), "kind": found.kind, "nbytes": found.nbytes,
        "mode": f"{stat.mode:04o}", "owner": stat.owner, "group": stat.group,
        "modified_ns": stat.modified_ns, "changed_ns": stat.changed_ns, "fields": found.fields,
    }  # fmt: skip
