"""The help of each verb: one line, an example that is valid, and each option in one group."""

import importlib
import shlex
from collections.abc import Iterator

import click
import pytest
from command_line import outcore

from outcore.cli import VERBS
from outcore.cli.verbs import COMMON, Verb


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each verb, with those of groups of verbs."""
    for verb in VERBS:
        command = importlib.import_module(f"outcore.cli.{verb}").command
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", each) for name, each in command.commands.items())
        else:
            yield verb, command


COMMANDS = dict(commands())
GROUPS = {
    verb: command
    for verb in VERBS
    if isinstance(command := importlib.import_module(f"outcore.cli.{verb}").command, click.Group)
}


@pytest.fixture(params=COMMANDS)
def named(request: pytest.FixtureRequest) -> tuple[str, Verb]:
    command = COMMANDS[request.param]
    assert isinstance(command, Verb)
    return request.param, command


def test_help_says_in_one_line_what_the_verb_does(named: tuple[str, Verb]) -> None:
    name, _ = named
    _, says, after = outcore(*name.split(), "--help").stdout.split("\n\n")[:3]
    assert says.count("\n") == 0
    assert says.endswith(".")
    assert after


def test_the_example_is_a_valid_command_line(named: tuple[str, Verb]) -> None:
    name, command = named
    assert f"\n  {command.example}\n" in outcore(*name.split(), "--help").stdout
    assert len(command.example) <= 78
    assert command.example.startswith(f"outcore {name} ")
    words = shlex.split(command.example)[1 + len(name.split()) :]
    # Only the parser: converting a path would connect to its pool.
    context = click.Context(command)
    found, rest, _ = command.make_parser(context).parse_args(words)
    assert rest == []
    needed = [each.name for each in command.params if each.required]
    assert [name for name in needed if found.get(str(name)) in (None, ())] == []


@pytest.mark.parametrize("verb", GROUPS)
def test_the_help_of_a_group_has_the_example_of_one_of_its_verbs(verb: str) -> None:
    shown = outcore(verb, "--help").stdout
    examples = [each.example for each in GROUPS[verb].commands.values() if isinstance(each, Verb)]
    assert [each for each in examples if f"\nExample:\n  {each}\n" in shown] != []
    assert shown.index("Example:") < shown.index("Commands:")


def test_each_option_is_in_one_group(named: tuple[str, Verb]) -> None:
    name, command = named
    grouped = [each for names in command.groups.values() for each in names]
    options = [str(each.name) for each in command.params if isinstance(each, click.Option)]
    assert [each for each in options if grouped.count(each) != 1] == []
    common = {each for names in COMMON.values() for each in names}
    assert set(grouped) - common <= set(options)
    shown = outcore(*name.split(), "--help").stdout
    assert "\nOutput:\n" in shown
    assert "Options:" not in shown
    assert shown.endswith("Show this message and exit.\n")
