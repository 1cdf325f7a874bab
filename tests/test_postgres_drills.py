"""The commands of docs/operations.md for a pool whose metadata are in PostgreSQL."""

import os
import re
import subprocess
import sys
from pathlib import Path

from postgres_server import PostgresServer, postgres
from started_pools import connect

from outcore.pool import local_pool

__all__ = ["postgres"]  # a fixture

PAGE = Path(__file__).parent.parent / "docs/operations.md"
BLOCK = re.compile(
    r"<!-- not run: tests/test_postgres_drills.py runs this -->\n```sh\n(.*?)```", re.DOTALL
)


def test_the_drills_of_the_page(postgres: PostgresServer, tmp_path: Path) -> None:
    first, *later = BLOCK.findall(PAGE.read_text())
    assert len(later) == 2
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"database": postgres.database(), "PATH": os.pathsep.join(programs)}

    def run(commands: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", commands], cwd=tmp_path, env=os.environ | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    places = [tmp_path / "disk-a", tmp_path / "disk-b"]
    try:
        assert f"the metadata are in {environment['database']}" in run(first)
        with connect(places) as pool:
            pool.mkdir("kept")
        run(later[0])
        with connect(places) as pool:
            assert pool.ls() == ["kept"]
        run(later[1])
        run("outcore pool up disk-a")
        with connect(places) as pool:
            assert pool.ls() == ["kept"]
    finally:
        local_pool.stop(places[0])
