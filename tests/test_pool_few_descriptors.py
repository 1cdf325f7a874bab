"""Daemons with few file descriptors: they close idle files and connections, and keep serving."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from served import make_key

import outcore as oc

DESCRIPTORS = 64


def serve(stack: ExitStack, home: Path, role: str, **settings: str) -> str:
    """Start a daemon in its own process; return its first address."""
    lines = [f"{name} = {value}\n" for name, value in settings.items()]
    config = home / f"{role}.conf"
    config.write_text("".join([*lines, 'listen = ["tcp:127.0.0.1:0"]\n']))
    outcore = Path(sys.executable).with_name("outcore")
    script = f'ulimit -n {DESCRIPTORS} && exec "$@"'
    process = stack.enter_context(
        subprocess.Popen(
            ["sh", "-c", script, "sh", outcore, "serve", role, "--config", config, "--json"],
            stdout=subprocess.PIPE, text=True,
        )
    )  # fmt: skip
    stack.callback(process.terminate)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line == "}\n":
            break
    address: str = json.loads(said)["listen"][0]
    return address


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield address and key of a pool whose daemons may have 64 files open each."""
    key = make_key(tmp_path / "key")
    (tmp_path / "a").mkdir()
    common = {"directory": f'"{tmp_path / "a"}"', "key_file": f'"{key}"'}
    with ExitStack() as stack:
        manager = serve(stack, tmp_path, "manager", **common)
        serve(stack, tmp_path, "io", manager=f'["{manager}"]', **common)
        yield manager.replace("tcp:", "outcore://"), key


def test_many_files_and_clients_at_once(connected: tuple[str, Path]) -> None:
    url, key = connected
    with ExitStack() as stack:
        first = stack.enter_context(oc.connect(url, key=key))

        def content(number: int) -> bytes:
            return bytes([number]) * 70_000

        def write(number: int) -> None:
            with first.open(f"f{number}", "w") as file:
                file.write(content(number))

        def read(number: int) -> bytes:
            return first.open(f"f{number}").read()

        with ThreadPoolExecutor(DESCRIPTORS) as threads:
            list(threads.map(write, range(DESCRIPTORS)))
            assert list(threads.map(read, range(DESCRIPTORS))) == [
                *map(content, range(DESCRIPTORS))
            ]
        # Each client keeps one connection to the manager and two to the I/O server.
        clients = [stack.enter_context(oc.connect(url, key=key)) for _ in range(DESCRIPTORS // 2)]
        for _ in range(2):
            for number, client in enumerate(clients):
                assert client.open(f"f{number}").read() == content(number)
