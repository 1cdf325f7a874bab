"""A process that executes commands: it reads lines of JSON, and answers each with one line."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Self


class Commanded:
    """The process, as seen by its benchmark; use it as a context manager.

    Parameters
    ----------
    command
        Command that starts the process, which announces itself with a line.
    environment
        Additional environment variables.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(environment or {}),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._from.readline()

    def begin(self, do: str, **what: Any) -> None:
        """Send a command."""
        self._to.write(json.dumps({"do": do, **what}) + "\n")
        self._to.flush()

    def answer(self) -> Any:
        """Wait for the end of the command; return its answer."""
        line = self._from.readline()
        if not line:
            raise RuntimeError(f"a process ended with {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._to.close()
        self._from.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
