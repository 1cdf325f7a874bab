"""``outcore ls``."""

import contextlib
import sys
from collections import Counter

import click

from outcore._util.printable import as_shell_word, has_controls
from outcore.cli.listing import as_row, in_columns, to_dict
from outcore.cli.places import ANY_PATH, Failures, key_option
from outcore.cli.verbs import Verb, wants_json
from outcore.storage.file_status import FileStatus, children_of, names_in, status_of
from outcore.storage.pool_stat import Silent
from outcore.storage.volumes import AnyPath


@click.command(
    "ls",
    cls=Verb,
    short_help="List directories, in pools too.",
    example="outcore ls -l 'outcore://node1:7171/run*/u'",
    groups={
        "Entries": ("recursive", "hidden", "itself"),
        "Output": ("is_long", "exact"),
    },
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=ANY_PATH)
@click.option(
    "-l", "--long", "is_long", is_flag=True, help="Print mode, owner, group, size and time."
)
@click.option("-R", "--recursive", is_flag=True, help="Include everything below directories.")
@click.option("-a", "--all", "hidden", is_flag=True, help="Include names that begin with a dot.")
@click.option(
    "-d",
    "--directory",
    "itself",
    is_flag=True,
    help="List directories themselves, not their entries.",
)
@click.option("-b", "--bytes", "exact", is_flag=True, help="Print sizes in bytes.")
@key_option
def command(
    paths: tuple[AnyPath, ...],
    is_long: bool,
    recursive: bool,
    hidden: bool,
    itself: bool,
    exact: bool,
) -> None:
    """List each PATH: the entries of a directory, or a file itself.

    PATH is the current directory by default. In a pool, PATH may be a pattern: * ? [...] within
    names, ** for any number of directories. A link to a directory is followed; with -l or -d it is
    shown itself, with its target. The command requests a thousand names at a time. Names
    with control characters are quoted, as in GNU ls: on a terminal, and with -l everywhere. The
    exit code is 1 if a PATH cannot be listed, or a server of a pool does not answer. A file whose
    size is then unknown has a ? for it.
    """
    # With --json every attribute is included.
    printer = _Printer(is_long=is_long or wants_json(), exact=exact)
    failures, silent = Failures({"entries": printer.entries}), Silent()
    given = failures.expanded(paths or [ANY_PATH.convert(".", None, None)])
    directories: list[AnyPath] = []
    files: list[FileStatus] = []
    for path in given:
        with failures.noted(path):
            status = status_of(path, silent=silent)
            if status.kind == "link" and not (is_long or itself):
                with contextlib.suppress(OSError):
                    status = status_of(path, follow=True)
            if status.is_directory and not itself:
                directories.append(path)
            else:
                files.append(status)
    printer.show([(each, str(each.path)) for each in files])
    for each in files:
        _note_unknown(failures, each.path, [each])
    titled = recursive or len(given) > 1
    while directories:
        path = directories.pop(0)
        with failures.noted(path):
            found, below = _one(path, printer, silent, titled, recursive, hidden)
            _note_unknown(failures, path, found)
            directories = below + directories
    failures.end()


def _one(
    path: AnyPath,
    printer: "_Printer",
    silent: Silent,
    titled: bool,
    recursive: bool,
    hidden: bool,
) -> tuple[list[FileStatus], list[AnyPath]]:
    """List a directory; return its files, and the subdirectories to list."""
    if titled:
        printer.title(path)
    below: list[AnyPath] = []
    found: list[FileStatus] = []
    if printer.is_long:
        each_one = children_of(path, silent=silent)
        found = [each for each in each_one if hidden or each.path.name[0] != "."]
        printer.show([(each, each.path.name) for each in found])
        below = [each.path for each in found if each.is_directory]
    else:
        names = [each for each in names_in(path) if hidden or each[0].name[0] != "."]
        printer.names([each.name for each, _ in names])
        below = [each for each, is_directory in names if is_directory]
    return found, below if recursive else []


def _note_unknown(failures: Failures, path: AnyPath, found: list[FileStatus]) -> None:
    """Report each reason for unknown sizes once."""
    reasons = Counter(each.unknown for each in found if each.unknown is not None)
    for reason, count in reasons.items():
        sizes = "the size of 1 file is" if count == 1 else f"the sizes of {count} files are"
        failures.note(path, f"{path}: {sizes} not known: {reason}")


class _Printer:
    def __init__(self, *, is_long: bool, exact: bool) -> None:
        self.is_long = is_long
        self._exact, self._as_json = exact, wants_json()
        self._is_first, self._is_terminal = True, sys.stdout.isatty()
        self.entries: list[dict[str, object]] = []

    def _shown(self, name: str) -> str:
        """Return a name as one line, quoted for people; lists for programs stay unchanged."""
        is_quoted = self._is_terminal or (self.is_long and has_controls(name))
        return as_shell_word(name) if is_quoted else name

    def _named(self, status: FileStatus, name: str) -> str:
        """Return the name of an entry, and the target of a link."""
        arrow = "" if status.target is None else f" -> {self._shown(status.target)}"
        return self._shown(name) + arrow

    def title(self, path: AnyPath) -> None:
        if not self._as_json:
            name = self._shown(str(path))
            click.echo(f"{name}:" if self._is_first else f"\n{name}:", color=True)
        self._is_first = False

    def names(self, names: list[str]) -> None:
        for name in names:
            # With color=True, click leaves control sequences in the text.
            click.echo(self._shown(name), color=True)

    def show(self, found: list[tuple[FileStatus, str]]) -> None:
        if not found:
            return
        self._is_first = False
        if self._as_json:
            self.entries += [to_dict(status) for status, _ in found]
        elif self.is_long:
            rows = [
                as_row(each, self._named(each, name), exact=self._exact) for each, name in found
            ]
            for line in in_columns(rows, right=(3,)):
                click.echo(line)
        else:
            self.names([name for _, name in found])
