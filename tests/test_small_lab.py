"""The page for a small lab, on four addresses of this machine in place of four PCs."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from timeouts import HANG_S

import outcore as oc

PAGE = (Path(__file__).parent.parent / "docs/how-to/small-lab.md").read_text()
PCS = range(1, 5)
OUTCORE = [sys.executable, "-c", "from outcore.cli import main; main()"]


def block(first: str) -> str:
    """Return the code block of the page that begins with this line."""
    found = re.search(rf"```\w+\n{re.escape(first)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, first
    return found[1]


class Lab:
    """The lab of the page, with addresses of this machine, below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemons: list[subprocess.Popen[str]] = []
        self.ports = dict(zip(("7171", "7172"), map(str, self.free_ports()), strict=True))

    @staticmethod
    def free_ports() -> list[int]:
        with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
            return [one.getsockname()[1], other.getsockname()[1]]

    def here(self, text: str, pc: int = 1) -> str:
        """Adapt a text of the page to this machine, as one of the PCs."""
        text = re.sub(r"7171|7172", lambda port: self.ports[port[0]], text)
        text = re.sub(r"pc(\d)", r"127.0.0.\1", text)
        text = text.replace("/scratch/ada", f"{self.directory}/pc{pc}")
        return text.replace("/home/ada", str(self.directory))

    def start(self, role: str, settings: str, pc: int) -> None:
        config = self.directory / f"{role}{pc}.conf"
        settings = settings.replace('listen = ["tcp:pc1', f'listen = ["tcp:pc{pc}')
        config.write_text(self.here(settings, pc))
        command = [*OUTCORE, "serve", role, "--config", str(config)]
        daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.daemons.append(daemon)
        assert daemon.stdout is not None
        assert f"127.0.0.{pc}:" in daemon.stdout.readline()

    def stop(self) -> None:
        """Stop all daemons as the page says, and check that each exits with status 0."""
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=HANG_S)
        assert [daemon.returncode for daemon in self.daemons] == [0] * len(self.daemons)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    key = "outcore pool key --new -o /home/ada/pool.key"
    assert key in PAGE
    subprocess.run([*OUTCORE, *lab.here(key).split()[1:]], check=True)
    made = re.findall(r"mkdir -p /scratch/ada/(\w+)", PAGE)
    assert made == ["names", "data"]
    for pc in PCS:
        for name in made[pc > 1 :]:
            (tmp_path / f"pc{pc}" / name).mkdir(parents=True)
    try:
        lab.start("manager", block("# /home/ada/manager.conf on pc1"), 1)
        for pc in PCS:
            lab.start("io", block("# /home/ada/io.conf on pc1"), pc)
        yield lab
        lab.stop()
    finally:
        for daemon in lab.daemons:
            daemon.kill()
            daemon.wait()


@pytest.mark.exhaustive
def test_four_pcs(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = lab.here("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 disks" in done.stdout
    assert "backward error" in done.stdout
    url = lab.here("outcore://pc1:7171")
    with oc.connect(url, key=tmp_path / "pool.key") as pool:
        assert pool.open("notes.txt").read() == b"which mesh this was\n"
    monkeypatch.setenv("OUTCORE_KEY", str(tmp_path / "pool.key"))
    room = subprocess.run([*OUTCORE, "df", url], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^\d", room, re.MULTILINE) == ["0", "1", "2", "3"]
    # All four servers store part of the matrix, and no other place does.
    for pc in PCS:
        data = tmp_path / f"pc{pc}" / "data"
        assert sum(file.stat().st_size for file in data.rglob("*") if file.is_file()) > 500_000
