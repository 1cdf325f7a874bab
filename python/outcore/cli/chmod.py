"""``outcore chmod``."""

import click

from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb
from outcore.errors import InvalidError
from outcore.storage.file_attributes import set_mode
from outcore.storage.file_status import FileStatus, children_of, status_of
from outcore.storage.modes import changed_mode, check_mode, current_umask
from outcore.storage.volumes import AnyPath


@click.command(
    "chmod",
    cls=Verb,
    short_help="Change permissions.",
    example="outcore chmod -R g+rX results",
    groups={
        "Files": ("recursive",),
    },
    context_settings={"ignore_unknown_options": True},
)
@click.argument("mode")
@paths_argument
@click.option("-R", "--recursive", is_flag=True, help="Include everything below directories.")
@key_option
def command(mode: str, paths: tuple[AnyPath, ...], recursive: bool) -> None:
    """Change the permissions of each PATH to MODE.

    MODE is octal, such as 640, or symbolic, such as u+rwx,g-w, as in the system's chmod. Files in
    pools have no set-ID bits; directories can have the set-group-ID bit.
    """
    try:
        check_mode(mode)
    except InvalidError as error:
        raise click.UsageError(str(error)) from None
    changed: list[dict[str, str]] = []
    failures, umask = Failures({"changed": changed}), current_umask()

    def change(status: FileStatus) -> None:
        with failures.noted(status.path):
            bits = changed_mode(
                mode, status.mode, is_directory=status.is_directory, umask=umask
            )  # fmt: skip
            set_mode(status.path, bits)
            changed.append({"path": str(status.path), "mode": f"{bits:04o}"})
        if recursive and status.is_directory:
            with failures.noted(status.path):
                for child in children_of(status.path):
                    if child.kind != "link":
                        change(child)

    for path in failures.expanded(paths):
        with failures.noted(path):
            change(status_of(path, follow=True))
    failures.end()
