"""``outcore cp``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.places import ANY_PATH, TARGET, Failures, key_option, overwrite_option, read_hints
from outcore.cli.verbs import Verb, say, wants_json
from outcore.files.copy import FileCopyReport, copy_files
from outcore.storage.volumes import AnyPath, PathLike


@click.command(
    "cp",
    cls=Verb,
    short_help="Copy files and directories to, from and within pools.",
    example="outcore cp -r --resume results outcore://node1:7171/backup",
    groups={
        "Sources": ("recursive", "follow"),
        "Target": ("if_exists", "preserve", "hints"),
        "Copying": ("resume", "verify"),
    },
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=ANY_PATH)
@click.argument("target", type=TARGET)
@click.option(
    "-r",
    "--recursive",
    is_flag=True,
    help="Copy directories too.  [default: arrays, factors and groups only]",
)
@click.option(
    "-L", "--dereference", "follow", is_flag=True,
    help="Copy the targets of links.  [default: copy links as links]",
)  # fmt: skip
@click.option(
    "-p", "--preserve", is_flag=True,
    help="Keep mode, time and extended attributes; owner and group where that is allowed.",
)  # fmt: skip
@overwrite_option("-f", help="Replace an existing target once its copy is complete.")
@click.option("--resume", is_flag=True, help="Resume a stopped copy.")
@click.option(
    "--verify/--no-verify", default=None,
    help="Read the copy back, and compare checksums.  [default: for plain files]",
)  # fmt: skip
@click.option(
    "--hint", "hints", metavar="NAME=VALUE", multiple=True, callback=read_hints,
    help="Layout of new files in a pool, such as striping_unit=1MiB.",
)  # fmt: skip
@click.option("--memory", default="64MiB", show_default=True, help="Memory for pieces in flight.")
@key_option
def command(
    sources: tuple[AnyPath, ...],
    target: PathLike,
    follow: bool,
    **options: Any,
) -> None:
    """Copy each SOURCE to TARGET, or into it if it is a directory.

    Both are plain paths or URLs of names in pools; a SOURCE in a pool may be a pattern. A copy gets
    its name only when it is complete and durable; until then it has a hidden name in the same
    directory. After an error the other sources are still copied, and the exit code is 1. A SOURCE
    never replaces an earlier copy of the same call.

    In a pool, the data of a copy carries a CRC-32C of the bytes read. The servers check it on
    arrival, store it, and check it at each read. A plain copy is read back from the disk, and its
    CRC-32C is compared with that of SOURCE. --verify also reads copies in pools back.

    With -r, symbolic links are copied as links with the same targets; with -L their targets are
    copied. A SOURCE that is itself a link is followed, except with -r alone.

    After Ctrl-C, an error or kill -9, --resume continues a copy. The call compares the written data
    with the checksums in its journal, and copies differing data again.
    """
    copied: list[dict[str, Any]] = []
    failures = Failures({"copied": copied})

    def done(report: FileCopyReport) -> None:
        copied.append(asdict(report))
        say(as_line(str(report)))

    copy_files(
        sources, target, links="follow" if follow else "copy", progress=not wants_json(),
        done=done, failed=failures.failed, **options,
    )  # fmt: skip
    failures.end()
