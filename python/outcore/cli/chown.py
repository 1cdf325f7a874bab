"""``outcore chown``."""

import grp
import pwd
from collections.abc import Callable

import click

from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb
from outcore.storage.file_attributes import set_owner
from outcore.storage.file_status import children_of, status_of
from outcore.storage.volumes import AnyPath

_MOST_ID = 2**32 - 2


class _Owner(click.ParamType):  # type: ignore[type-arg]  # new in click 8.4
    """``USER``, ``USER:GROUP``, ``:GROUP`` or ``USER:`` with the user's own group."""

    name = "owner"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return the ids of the user and the group."""
        user, colon, group = value.partition(":")
        if not user and not group:
            self.fail(f"{value!r} names neither a user nor a group")
        uid = gid = None
        if user:
            uid = self._number(user, "user", lambda name: pwd.getpwnam(name).pw_uid)
        if group:
            gid = self._number(group, "group", lambda name: grp.getgrnam(name).gr_gid)
        elif colon and uid is not None:
            try:
                gid = pwd.getpwuid(uid).pw_gid
            except KeyError:
                self.fail(f"this machine does not know the group of user {user}; name it")
        return uid, gid

    def _number(self, text: str, what: str, find: Callable[[str], int]) -> int:
        try:
            return find(text)
        except KeyError:
            if text.isdigit() and text.isascii() and int(text) <= _MOST_ID:
                return int(text)
            self.fail(f"this machine knows no {what} {text!r}; give a number")


@click.command(
    "chown",
    cls=Verb,
    short_help="Change owner and group.",
    example="outcore chown ada:physics outcore://node1:7171/ada",
    groups={
        "Files": ("recursive",),
    },
)
@click.argument("owner", metavar="USER[:GROUP]", type=_Owner())
@paths_argument
@click.option("-R", "--recursive", is_flag=True, help="Include everything below directories.")
@key_option
def command(
    owner: tuple[int | None, int | None],
    paths: tuple[AnyPath, ...],
    recursive: bool,
) -> None:
    """Change the owner of each PATH, its group, or both.

    USER and GROUP are names that this machine knows, or numbers; :GROUP changes the group only,
    USER: sets the user's own group. In a pool, giving files to other users needs the pool's key.
    """
    changed: list[str] = []
    failures = Failures({"changed": changed})

    def change(path: AnyPath, is_directory: bool) -> None:
        with failures.noted(path):
            set_owner(path, *owner)
            changed.append(str(path))
        if recursive and is_directory:
            with failures.noted(path):
                for child in children_of(path):
                    change(child.path, child.is_directory)

    for path in failures.expanded(paths):
        with failures.noted(path):
            change(path, status_of(path).is_directory)
    failures.end()
