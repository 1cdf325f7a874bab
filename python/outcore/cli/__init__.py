"""The command ``outcore``: one module for each verb, imported on use."""

import importlib

import click

import outcore
from outcore.cli.verbs import Verbs

VERBS = (
    "attr", "chmod", "chown", "convert", "cp", "demo", "df", "doctor", "env", "info", "ls",
    "mkdir", "mount", "mv", "plan", "pool", "repack", "report", "rm", "serve", "solve", "stat",
    "umount", "verify",
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


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(outcore.__version__, prog_name="outcore")
def main() -> None:
    """Arrays larger than memory, and solvers that run out of core at in-core speed."""
