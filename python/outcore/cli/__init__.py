"""The command ``outcore``: one module for each verb."""

import click

import outcore
from outcore.cli import (
    attr,
    chmod,
    chown,
    convert,
    cp,
    demo,
    df,
    doctor,
    info,
    ls,
    mkdir,
    mv,
    plan,
    pool,
    report,
    rm,
    serve,
    solve,
    stat,
    verify,
)
from outcore.cli.invocation import Verbs


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(outcore.__version__, prog_name="outcore")
def main() -> None:
    """Arrays larger than memory, and solvers that run out of core at in-core speed."""


VERBS = (
    attr, chmod, chown, convert, cp, demo, df, doctor, info, ls, mkdir, mv, plan, pool, report, rm,
    serve, solve, stat, verify,
)  # fmt: skip

for verb in VERBS:
    main.add_command(verb.command)
