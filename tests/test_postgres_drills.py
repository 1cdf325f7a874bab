"""The commands of docs/operations.md for a pool whose metadata are in PostgreSQL."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from postgres_server import PostgresServer, postgres
from served import make_key
from started_pools import connect
from test_pool_up import free_port
from test_postgres_standby import SERVE
from timeouts import HANG_S

import outcore as oc
from outcore.pool import local_pool

__all__ = ["postgres"]  # a fixture

PAGE = Path(__file__).parent.parent / "docs/operations.md"
BLOCK = re.compile(
    r"<!-- not run: tests/test_postgres_drills.py runs this -->\n```sh\n(.*?)```", re.DOTALL
)


def test_the_drills_of_the_page(postgres: PostgresServer, tmp_path: Path) -> None:
    first, *later = BLOCK.findall(PAGE.read_text())
    assert len(later) == 2
    # A user of the page's name is there already, and makes another one.
    (create,) = re.findall(r"^\$ (createuser .*)$", PAGE.read_text(), re.MULTILINE)
    server = urlsplit(postgres.database())
    (host,) = parse_qs(server.query)["host"]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {
        "database": f"postgres://drill@/drill?host={host}", "PATH": os.pathsep.join(programs),
        "PGHOST": host, "PGUSER": server.username or "",
    }  # fmt: skip

    def run(commands: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", commands], cwd=tmp_path, env=os.environ | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    places = [tmp_path / "disk-a", tmp_path / "disk-b"]
    run(create.replace("outcore", "drill"))
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


def test_the_stand_by_of_the_page(postgres: PostgresServer, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (settings,) = re.findall(r"```ini\n# manager.conf, on node2\n(.*?)```", page, re.DOTALL)
    make_key(tmp_path / "key")
    ports, url = [free_port(), free_port()], postgres.database()
    configs, managers = [], []
    for number, port in enumerate(ports):
        (tmp_path / f"m{number}").mkdir()
        ours = {
            "/mnt/a/pool": tmp_path / f"m{number}", "tcp:node2:7171": f"tcp:127.0.0.1:{port}",
            "/home/lab/pool.key": tmp_path / "key", "postgres://outcore@db1/outcore": url,
        }  # fmt: skip
        text = settings
        for theirs, value in ours.items():
            assert f'"{theirs}"' in text
            text = text.replace(f'"{theirs}"', f'"{value}"')
        (tmp_path / f"{number}.conf").write_text(text)
        configs.append(tmp_path / f"{number}.conf")
    address = "outcore://node1:7171,node2:7171"
    assert address in page
    for number, port in enumerate(ports):
        address = address.replace(f"node{number + 1}:7171", f"127.0.0.1:{port}")
    try:
        for config in configs:
            command = [sys.executable, "-c", SERVE, str(config)]
            managers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            if len(managers) == 1:
                assert said(managers[0]) == "active"
        with oc.connect(address, key=tmp_path / "key") as pool:
            pool.mkdir("kept")
            managers[0].kill()
            pool.mkdir("later")
            assert said(managers[1]) == "active"
            assert pool.ls() == ["kept", "later"]
    finally:
        for manager in managers:
            manager.kill()
            manager.communicate(timeout=HANG_S)


def said(manager: "subprocess.Popen[str]") -> str:
    assert manager.stdout is not None
    return manager.stdout.readline().strip()
