"""Names with control characters, as verbs print them to a terminal, to a pipe, and as JSON."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import outcore
from rich.console import Console
from rich.progress import Progress
from served import Served

import outcore as oc
from outcore._util import progress as progress_module
from outcore._util.printable import as_line, as_lines, as_shell_word

RED = "a\x1b[31mred"
FAKE = "x\n-rw-r--r--  root  root  0 B  fake"
NAMES = [RED, FAKE, "\x1b]0;title\x07", "it's\tx", "\x7f", "\x9b31m", os.fsdecode(b"x\xff\n")]


def on_a_terminal(*arguments: object) -> str:
    """Return the output of ``outcore`` on a terminal."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from outcore.cli import main; main()", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    written = b""
    try:
        while part := os.read(leader, 4096):
            written += part
    except OSError:  # the other end closed
        pass
    process.wait()
    os.close(leader)
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("name", [*NAMES, "plain", "ü☃", "a b"])
def test_a_shell_reads_the_name_that_was_meant(tmp_path: Path, name: str) -> None:
    word = as_shell_word(name)
    assert "\n" not in word
    assert word.isprintable()
    if name in NAMES:
        echoed = subprocess.run(
            ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True
        )
        assert os.fsdecode(echoed.stdout) == name
    else:
        assert word == name


def test_ls_on_a_terminal_is_as_gnus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RED, FAKE, "it's\tx", "plain"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    gnu = subprocess.run(
        ["ls", "-1", "--quoting-style=shell-escape"], capture_output=True, text=True, check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    ).stdout  # fmt: skip
    assert on_a_terminal("ls") == gnu
    raw = subprocess.run(["ls", "-1"], capture_output=True, check=True, env={"LC_ALL": "C"}).stdout
    assert outcore("ls").stdout_bytes == raw
    lines = outcore("ls", "-l").stdout.splitlines()
    assert [line.split(":")[-1][4:] for line in lines] == gnu.splitlines()
    found = json.loads(outcore("ls", "--json").stdout)["entries"]
    assert {Path(each["path"]).name for each in found} == {RED, FAKE, "it's\tx", "plain"}


def test_no_verb_writes_a_control_character(served_here: Served) -> None:
    url = served_here.url
    Path("f").write_text("1")
    Path("top").mkdir()
    oc.from_array(np.ones((2, 2)), "A", progress=False).close()
    for name in (RED, FAKE):
        odd = f"{url}/{name}"
        for arguments in (
            ["cp", "f", odd], ["ls", "-l", url], ["ls", odd], ["ls", "-lR", url], ["stat", odd],
            ["chmod", "600", odd, f"{odd}none"], ["attr", "set", odd, name, "1"],
            ["attr", "list", odd], ["df", odd], ["cp", odd, "."], ["cp", odd, "none/"],
            ["mv", f"{odd}none", url], ["info", odd], ["verify", odd], ["rm", "-y", odd, f"{odd}?"],
            ["convert", "A", f"{url}/{name}A"], ["info", f"{url}/{name}A"], ["info", url],
            ["verify", f"{url}/{name}A"], ["cp", f"{url}/{name}A", "top"], ["info", "top"],
            ["convert", f"{url}/{name}A", f"{name}.npy"], ["convert", f"{name}.npy", "f"],
            ["report", name], ["pool", "status", name], ["nonsense" + name],
        ):  # fmt: skip
            result = outcore(*arguments)
            if arguments[:2] != ["ls", odd]:
                assert "\x1b" not in result.output + result.stderr, arguments
                assert "\n-rw-r--r--  root  root  0 B  fake" not in result.output + result.stderr, (
                    arguments
                )


def test_damage_is_told_without_them(served_here: Served) -> None:
    with oc.connect(served_here.url) as pool:
        with pool.open(RED, "w") as file:
            file.write(b"1")
        for path in Path().glob("[ab]/data/*/*"):
            path.unlink()
    result = outcore("pool", "fsck", served_here.url)
    assert "\x1b" not in result.output


def test_the_bar_of_a_copy_shows_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are not markup, and the bar prints an escape as text."""
    shown: list[Progress] = []

    class Kept(Progress):
        def start(self) -> None:
            shown.append(self)

    monkeypatch.setattr("rich.progress.Progress", Kept)
    meter = progress_module.Meter("copying to [/x]\x1b[31m", 1.0, False)
    meter._first = -1.0  # an earlier start, so that the meter can estimate the time left
    meter._draw(0.5)
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(shown[0].get_renderable())
    assert "copying to [/x]\\033[31m" in capture.get()


def test_texts_of_several_lines_keep_their_lines() -> None:
    assert as_lines("a\x1b\nb\r") == "a\\033\nb\\r"
    assert as_line("a\x1b\nb") == "a\\033\\nb"
