"""A PostgreSQL server for tests, on a private socket; `tests/postgres-server` starts it."""

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class PostgresServer:
    """A running server, until `close`; it also ends with this process.

    Its files are in `above`, by default in memory.
    """

    def __init__(self, above: Path | None = None) -> None:
        command = [Path(__file__).with_name("postgres-server"), *([above] if above else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout is not None
        self._said = self._process.stdout
        line = self._said.readline().strip()
        if not line.startswith("postgres://"):
            self.close()
            pytest.skip(line)
        self._url = line
        self._numbers = itertools.count()

    def tell(self, command: str) -> str:
        """Send a command, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        return self._said.readline().strip()

    def database(self) -> str:
        """Make an empty database, and return its URL."""
        name = f"test{next(self._numbers)}"
        assert self.tell(f"create {name}") == "done"
        return self._url.replace("/postgres?", f"/{name}?")

    def sql(self, url: str, sql: str) -> str:
        """Run SQL in a database."""
        name = url.partition("@/")[2].partition("?")[0]
        return self.tell(f"psql {name} {sql}")

    def close(self) -> None:
        """Stop the server, and remove its files."""
        self._process.communicate()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Start a server for the tests of a file; without PostgreSQL, skip them."""
    server = PostgresServer()
    yield server
    server.close()
