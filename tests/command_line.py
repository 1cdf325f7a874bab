"""The command line, called in this process."""

from click.testing import CliRunner, Result

from outcore.cli import main


def outcore(*arguments: object, typed: str | None = None) -> Result:
    """Call ``outcore`` with these arguments; it must end by an exit code, not by a traceback."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=typed)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
