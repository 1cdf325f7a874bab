"""iperf3: the reference for TCP."""

import json
import shutil
import socket
import subprocess
from collections.abc import Sequence


def is_installed() -> bool:
    """Whether iperf3 is installed."""
    return shutil.which("iperf3") is not None


def rate(address: str, *, seconds: float, at: Sequence[str] = (), to: Sequence[str] = ()) -> float:
    """Return bytes per second of one connection to a server at `address`.

    `at` and `to` are words before the commands of client and server, which run them on other hosts.
    """
    port = str(_free_port())
    server = subprocess.Popen(
        [*to, "iperf3", "--server", "--one-off", "--bind", address, "--port", port, "--forceflush"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        next(line for line in server.stdout if "listening" in line)
        client = [*at, "iperf3", "--client", address, "--port", port, "--json"]
        run = subprocess.run(
            [*client, "--time", str(seconds)], capture_output=True, text=True, check=True
        )
        return float(json.loads(run.stdout)["end"]["sum_received"]["bits_per_second"]) / 8
    finally:
        server.kill()
        server.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
