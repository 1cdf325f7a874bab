"""The commands of docs/operations.md that turn a pool into services, run below another root."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/operations.md").read_text()
UNITS = ("outcore-manager.service", "outcore-io@.service", "outcore-mount@.service")


def test_the_lines_put_everything_where_the_units_look(tmp_path: Path) -> None:
    section = PAGE.split("## As services of systemd")[1].split("\n## ")[0]
    lines = re.findall(r"^# (.*)$", section, re.MULTILINE)
    assert [line.split()[0] for line in lines] == [
        "install", "install", "useradd", "install", "install", "systemctl",
    ]  # fmt: skip
    # Create the directories of a system, and the files that the page expects in the current one.
    for directory in ("usr/local/bin", "etc/systemd/system", "mnt/a"):
        (tmp_path / directory).mkdir(parents=True)
    here = tmp_path / "here"
    shutil.copytree(ROOT / "packaging/systemd", here / "packaging/systemd")
    for name in ("outcored", "pool.key", "manager.conf", "io-a.conf", "mount-a.conf"):
        (here / name).write_text(name)
    for line in lines:
        if line.startswith("install"):
            moved = re.sub(r" (/\w)", rf" {tmp_path}\1", line).replace(" -o outcore", "")
            done = subprocess.run(["sh", "-c", moved], cwd=here, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), line
    for unit in UNITS:
        text = (tmp_path / "etc/systemd/system" / unit).read_text().replace("%i", "a")
        named = re.findall(r"(/(?:etc|usr)/[\w./-]+)", " ".join(re.findall("Exec.*", text)))
        assert len(named) >= 2
        for name in named:
            assert (tmp_path / name[1:]).is_file(), name
    assert (tmp_path / "mnt/a/pool").is_dir()
