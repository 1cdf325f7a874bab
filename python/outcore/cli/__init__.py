"""The command ``outcore``: one module for each verb, imported on use."""

import importlib

import click

import outcore
from outcore._util import c_library
from outcore.cli.verbs import Verbs
from outcore.errors import NotFoundError

VERBS = (
    "advise", "attr", "balance", "chmod", "chown", "convert", "cp", "demo", "df", "doctor", "env",
    "find", "info", "ls", "mkdir", "mount", "mv", "permute", "plan", "pool", "rechunk", "repack",
    "report", "rm", "serve", "solve", "stat", "umount", "verify",
)  # fmt: skip
"""The verbs, in the order of the help."""


class _Main(Verbs):
    """The group of all verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb, and return its command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"outcore.cli.{cmd_name}").command
        return command


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.version_option(outcore.__version__, prog_name="outcore")
@click.option("--cflags", is_flag=True, help="Print the compiler's flags for the C library.")
@click.option("--libs", is_flag=True, help="Print the linker's flags for the C library.")
@click.option("--pkgconfigdir", is_flag=True, help="Print the directory of its outcore.pc.")
@click.pass_context
def main(ctx: click.Context, cflags: bool, libs: bool, pkgconfigdir: bool) -> None:
    """Arrays larger than memory, and solvers that run out of core at in-core speed."""
    wanted = {
        c_library.cflags: cflags, c_library.libs: libs, c_library.pkgconfigdir: pkgconfigdir,
    }  # fmt: skip
    asked = [function for function, is_asked in wanted.items() if is_asked]
    if ctx.invoked_subcommand is not None:
        if asked:
            raise click.UsageError("--cflags, --libs and --pkgconfigdir go without a verb")
        return
    try:
        click.echo(" ".join(function() for function in asked))
    except NotFoundError as error:
        raise click.ClickException(str(error)) from None
