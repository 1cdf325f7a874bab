"""The verbs for files: ls, cp, mv, rm, mkdir, stat, df, chmod, chown, attr, on a served pool."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from served import Served

import outcore as oc


def document(*arguments: object) -> Any:
    result = outcore(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def lines(*arguments: object) -> list[str]:
    result = outcore(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def refusal(*arguments: object, code: int = 1) -> str:
    """Return the single line on standard error."""
    result = outcore(*arguments)
    assert result.exit_code == code, (result.stdout, result.stderr)
    assert result.stderr.count("\n") == 1 or code == 2, result.stderr
    return result.stderr


def make_files(url: str) -> None:
    for name in ("a.txt", "b.txt", "d/c.txt", "d/e/f", ".hidden"):
        Path("local").write_bytes(name.encode() * 10)
        lines("cp", "local", f"{url}/{name}")


def test_ls_lists_as_ls_does(served_here: Served) -> None:
    make_files(served_here.url)
    url = served_here.url
    assert lines("ls", url) == ["a.txt", "b.txt", "d"]
    assert lines("ls", "-a", f"{url}/") == [".hidden", "a.txt", "b.txt", "d"]
    assert lines("ls", f"{url}/*.txt") == [f"{url}/a.txt", f"{url}/b.txt"]
    assert lines("ls", "-d", f"{url}/d") == [f"{url}/d"]
    # The same tree in a plain directory, listed by the system's ls.
    for name in ("a.txt", "b.txt", "d/c.txt", "d/e/f"):
        Path("tree", name).parent.mkdir(parents=True, exist_ok=True)
        Path("tree", name).touch()
    theirs = subprocess.run(["ls", "-R", "tree"], capture_output=True, text=True, check=True)
    assert outcore("ls", "-R", "tree").stdout == theirs.stdout
    ours = outcore("ls", "-R", url).stdout.replace(f"{url}/", "tree/").replace("tree/:", "tree:")
    assert ours == theirs.stdout
    long = lines("ls", "-lb", url)
    assert [line.split()[0] for line in long] == ["-rw-r--r--", "-rw-r--r--", "drwxr-xr-x"]
    assert [line.split()[3] for line in long] == ["50", "50", "-"]
    found = document("ls", "-R", url)
    assert [(each["path"], each["kind"], each["nbytes"]) for each in found["entries"]] == [
        (f"{url}/a.txt", "file", 50), (f"{url}/b.txt", "file", 50), (f"{url}/d", "directory", 0),
        (f"{url}/d/c.txt", "file", 70), (f"{url}/d/e", "directory", 0),
        (f"{url}/d/e/f", "file", 50),
    ]  # fmt: skip


def test_one_failure_does_not_stop_the_others(served_here: Served) -> None:
    make_files(served_here.url)
    result = outcore("ls", f"{served_here.url}/none", f"{served_here.url}/a.txt", "nowhere")
    assert result.exit_code == 1
    assert result.stdout == f"{served_here.url}/a.txt\n"
    assert len(result.stderr.splitlines()) == 2
    result = outcore(
        "chmod", "600", f"{served_here.url}/none", f"{served_here.url}/a.txt", "--json"
    )
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["path"] for each in found["changed"]] == [f"{served_here.url}/a.txt"]
    assert [each["kind"] for each in found["errors"]] == ["not_found"]


def test_stat_tells_all(served_here: Served) -> None:
    make_files(served_here.url)
    lines("attr", "set", f"{served_here.url}/a.txt", "colour", "red")
    (found,) = document("stat", f"{served_here.url}/a.txt")["entries"]
    expected = {"kind": "file", "nbytes": 50, "mode": "0644", "attributes": ["colour"]}
    assert expected.items() <= found.items()
    assert sorted(found["servers"]) == [0, 1]
    text = outcore("stat", f"{served_here.url}/a.txt", "local").stdout
    assert "stripe unit" in text
    assert "on disk" in text
    (plain,) = document("stat", "local")["entries"]
    theirs = os.stat("local")
    assert (plain["nbytes"], plain["owner"]) == (theirs.st_size, theirs.st_uid)
    assert plain["modified_ns"] == theirs.st_mtime_ns
    assert plain["disk_bytes"] == theirs.st_blocks * 512


def test_directories_are_made(served_here: Served) -> None:
    url = served_here.url
    lines("mkdir", "-m", "u=rwx,go=", f"{url}/d")
    assert lines("ls", "-l", url)[0].startswith("drwx------")
    assert "make it first, or pass -p" in refusal("mkdir", f"{url}/x/y")
    assert "exists" in refusal("mkdir", f"{url}/d")
    assert document("mkdir", "-p", f"{url}/x/y", f"{url}/d", "plain/z")["made"] == [
        f"{url}/x/y", "plain/z"
    ]  # fmt: skip
    assert "make it first" not in refusal("mkdir", "plain/q/z")
    assert Path("plain/z").is_dir()
    lines("mkdir", "--hint", "striping_unit=64KiB", "--hint", "other=1", f"{url}/laid")
    lines("mkdir", "-p", "--hint", "stripe_unit_bytes=4096", f"{url}/d")
    Path("small").write_bytes(b"1")
    for name, unit in (("laid", 65536), ("d", 4096)):
        lines("cp", "small", f"{url}/{name}")
        entry = document("stat", f"{url}/{name}/small")["entries"][0]
        assert entry["stripe_unit_bytes"] == unit
    assert document("stat", f"{url}/laid/small")["entries"][0]["attributes"] == ["hint.other"]
    assert "--hint is for directories of a pool" in refusal("mkdir", "--hint", "base=1", "plain/h")
    assert not Path("plain/h").exists()
    assert "NAME=VALUE" in refusal("mkdir", "--hint", "base", f"{url}/h", code=2)
    before = os.umask(0o077)
    try:
        lines("mkdir", f"{url}/mine")
    finally:
        os.umask(before)
    assert lines("ls", "-ld", f"{url}/mine")[0].startswith("drwx------")


def test_rights_are_changed(served_here: Served) -> None:
    make_files(served_here.url)
    url = served_here.url
    lines("chmod", "u+x,go-r", f"{url}/*.txt")
    lines("chmod", "-R", "o=", f"{url}/d")
    found = {
        each["path"][len(url) + 1 :]: each["mode"] for each in document("ls", "-R", url)["entries"]
    }
    assert found == {
        "a.txt": "0700", "b.txt": "0700", "d": "0750", "d/c.txt": "0640", "d/e": "0750",
        "d/e/f": "0640",
    }  # fmt: skip
    lines("chmod", "-r", f"{url}/a.txt")
    assert document("stat", f"{url}/a.txt")["entries"][0]["mode"] == "0300"
    refusal("chmod", "u+q", f"{url}/a.txt", code=2)
    assert "0o1777" in refusal("chmod", "4755", f"{url}/a.txt")
    lines("chown", "1234:56", f"{url}/a.txt")
    lines("chown", ":root", f"{url}/b.txt")
    lines("chown", "-R", "daemon:", f"{url}/d")
    found = {each["path"][len(url) + 1 :]: (each["owner"], each["group"])
             for each in document("ls", "-R", url)["entries"]}  # fmt: skip
    assert found["a.txt"] == (1234, 56)
    assert found["b.txt"][1] == 0
    assert found["d/e/f"] == found["d"] == (1, 1)
    refusal("chown", "no such user", f"{url}/a.txt", code=2)
    refusal("chown", ":", f"{url}/a.txt", code=2)
    with oc.connect(url) as root:
        root.chmod("", 0o777)
    ada = served_here.key_of("ada", 1001, 100)
    for arguments in (
        ("chmod", "777", f"{url}/d"), ("chown", "1001", f"{url}/d"), ("ls", f"{url}/d/e"),
        ("cp", f"{url}/b.txt", "b"), ("attr", "set", f"{url}/d", "a", "b"),
    ):  # fmt: skip
        assert "need " in refusal(*arguments, "--key", ada)


def test_attributes(served_here: Served) -> None:
    make_files(served_here.url)
    for path in (f"{served_here.url}/a.txt", "local"):
        lines("attr", "set", path, "text", "ä\nb")
        Path("value").write_bytes(bytes(range(256)))
        lines("attr", "set", path, "bytes", "--file", "value")
        assert lines("attr", "list", path) == ["bytes", "text"]
        assert outcore("attr", "get", path, "bytes").stdout_bytes == bytes(range(256))
        assert document("attr", "get", path, "text")["value"] == "ä\nb"
        value = document("attr", "list", "-l", path)["entries"][0]["values"]["bytes"]
        assert base64.b64decode(value["value_base64"]) == bytes(range(256))
        lines("attr", "rm", path, "text")
        assert lines("attr", "list", path) == ["bytes"]
        assert "'text'" in refusal("attr", "get", path, "text").replace('"', "'")
        refusal("attr", "set", path, "x", code=2)
    assert os.getxattr("local", "user.bytes") == bytes(range(256))


def test_files_are_copied_moved_and_removed(served_here: Served) -> None:
    url = served_here.url
    make_files(url)
    Path("data").write_bytes(np.random.default_rng(0).bytes(300_000))
    (copied,) = document("cp", "data", f"{url}/d/", "--hint", "striping_unit=64KiB")["copied"]
    assert (copied["target"], copied["nbytes"]) == (f"{url}/d/data", 300_000)
    assert document("stat", f"{url}/d/data")["entries"][0]["stripe_unit_bytes"] == 65536
    lines("mkdir", "out")
    lines("cp", "-rp", f"{url}/d", f"{url}/*.txt", "out")
    assert Path("out/d/data").read_bytes() == Path("data").read_bytes()
    assert sorted(os.listdir("out")) == ["a.txt", "b.txt", "d"]
    assert "-r" in refusal("cp", f"{url}/d", "e")
    assert "-f" in refusal("cp", "data", f"{url}/a.txt")
    refusal("cp", "data", f"{url}/x", "--hint", "nothing", code=2)
    assert "need " in refusal("cp", "data", f"{url}/x", "--memory", "1MiB")
    lines("mv", f"{url}/d/data", f"{url}/data")
    lines("mv", f"{url}/data", "back")
    assert Path("back").read_bytes() == Path("data").read_bytes()
    assert "nothing matches" in refusal("mv", f"{url}/dat*", "x")
    refusal("rm", f"{url}/a.txt", code=2)
    assert "-r" in refusal("rm", "-y", f"{url}/d")
    removed = document("rm", "-ry", f"{url}/d", f"{url}/*.txt")["removed"]
    assert [each["kind"] for each in removed] == ["directory", "file", "file"]
    assert lines("ls", url) == []
    assert "remove it yourself" in refusal("rm", "-ry", "out")
    assert "cannot be removed" in refusal("rm", "-ry", url)


def test_links_are_copied_or_followed(served_here: Served, tmp_path: Path) -> None:
    """A copy equals that of the system's cp, with and without -L."""
    url = served_here.url
    Path("tree/d").mkdir(parents=True)
    Path("tree/d/f").write_bytes(b"content")
    Path("outside").mkdir()
    Path("outside/g").write_bytes(b"more")
    Path("tree/file").symlink_to("d/f")
    Path("tree/directory").symlink_to(tmp_path / "outside")
    Path("tree/again").symlink_to("directory")
    (copied,) = document("cp", "-r", "tree", f"{url}/links")["copied"]
    assert (copied["links"], copied["left_out"]) == (3, [])
    lines("cp", "-r", f"{url}/links", "links")
    subprocess.run(["diff", "-r", "--no-dereference", "tree", "links"], check=True)
    (report,) = oc.copy_files("tree", "left", recursive=True, links="leave", progress=False)
    assert list(report.left_out) == [
        str(tmp_path / "tree" / n) for n in ("again", "directory", "file")
    ]
    with pytest.raises(oc.errors.InvalidError, match="is a link"):
        oc.copy_files("tree", "none", recursive=True, links="refuse", progress=False)
    lines("cp", "-rL", "tree", f"{url}/followed")
    lines("cp", "-r", f"{url}/followed", "ours")
    subprocess.run(["cp", "-rL", "tree", "theirs"], check=True)
    subprocess.run(["diff", "-r", "ours", "theirs"], check=True)
    # A link with a missing target, or a cycle, ends both.
    for name, leads_to, said_of in (
        ("none", "nothing", "none"),
        ("end", "../tree", "which contains it"),
    ):
        Path("tree/d", name).symlink_to(leads_to if name == "none" else tmp_path / "tree")
        assert subprocess.run(["cp", "-rL", "tree", f"no-{name}"], check=False).returncode == 1
        assert said_of in refusal("cp", "-rL", "tree", f"{url}/no")
        assert not [each for each in lines("ls", "-a", url) if "no" in each]
        Path("tree/d", name).unlink()


def test_an_array_with_links_is_copied_whole_or_not_at_all(served_here: Served) -> None:
    oc.from_array(np.ones((4, 4)), "A", progress=False).close()
    Path("A/c").rename("elsewhere")
    Path("A/c").symlink_to("../elsewhere")
    assert "is a link" in refusal("cp", "A", f"{served_here.url}/A")
    assert lines("ls", "-a", served_here.url) == []
    lines("cp", "-L", "A", f"{served_here.url}/A")
    assert "4 x 4" in outcore("info", f"{served_here.url}/A").stdout
    lines("verify", f"{served_here.url}/A")
    assert "is a link" in refusal("mv", "A", f"{served_here.url}/moved")
    assert Path("A/c").is_symlink()
    Path("d").mkdir()
    Path("d/link").symlink_to("../elsewhere")
    lines("mv", "d", f"{served_here.url}/d")
    assert not Path("d").exists()
    assert "link -> ../elsewhere" in outcore("ls", "-l", f"{served_here.url}/d").stdout


def test_arrays_in_a_pool_are_known(served_here: Served) -> None:
    with oc.connect(served_here.url) as pool:
        oc.from_array(np.ones((40, 30)), pool / "run/A", progress=False).close()
    assert "40 x 30" in outcore("info", f"{served_here.url}/run/A").stdout
    assert document("info", served_here.url)["entries"][0]["kind"] == "array"
    assert document("verify", f"{served_here.url}/run/*")["verified"][0]["checksums"] == "none"
    lines("convert", f"{served_here.url}/run/A", "A.npy")
    lines("convert", "A.npy", f"{served_here.url}/run/B")
    with oc.connect(served_here.url) as pool, oc.open_array(pool / "run/B") as B:
        assert (B[...] == 1).all()
    assert "removed array" in lines("rm", "-y", f"{served_here.url}/run/A")[0]


def test_df_tells_of_each_server(served_here: Served) -> None:
    lines("cp", served_here.key, f"{served_here.url}/f")
    pool, disk = document("df", served_here.url, ".")["places"]
    assert [each["server"] for each in pool["servers"]] == [0, 1]
    assert pool["free_bytes"] == sum(each["free_bytes"] for each in pool["servers"])
    # The daemons also write a lock.
    assert pool["bytes_written"] == sum(each["bytes_written"] for each in pool["servers"])
    assert pool["bytes_written"] >= served_here.key.stat().st_size
    assert disk["total_bytes"] == os.statvfs(".").f_blocks * os.statvfs(".").f_frsize
    assert lines("df", served_here.url)[1].split()[0] == "server"


def test_df_counts_each_pool_and_disk_once(served_here: Served, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    # The same pool and the same disk under two names each; /dev/shm is another disk.
    found = document("df", served_here.url, f"{served_here.url}/", ".", "d", "/dev/shm")
    free = [each["free_bytes"] for each in found["places"]]
    about = free[0] + free[2] + free[4]
    # Other programs write at the same time, so two results differ.
    assert abs(found["total"]["free_bytes"] - about) < about // 10
    last = lines("df", "-b", served_here.url, ".", "/dev/shm")[-1]
    assert last.startswith("all places: ")
    assert last.endswith(" free")
    assert not any(line.startswith("all places") for line in lines("df", served_here.url))


def test_a_pool_is_named_by_its_directory_too(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool, pool.open("d/f", "w") as file:
        file.write(b"123")
    assert lines("ls", f"outcore:{tmp_path}/a::d") == ["f"]
    assert "there is no pool" in refusal("ls", f"outcore:{tmp_path}::d")
    assert "neither a socket nor" in refusal("ls", f"outcore:{tmp_path}/none::d")
    assert "is no name in a pool" in refusal("ls", "outcore://host/f")


def test_a_key_is_made_for_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTCORE_KEY", raising=False)
    assert document("pool", "key", "--new", "-o", tmp_path / "k") == {"key": str(tmp_path / "k")}
    made = (tmp_path / "k").read_text()
    assert re.fullmatch("outcore-pool-key-1 [0-9a-f]{64}\n", made)
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    assert "exists" in refusal("pool", "key", "--new", "-o", tmp_path / "k")
    assert (tmp_path / "k").read_text() == made
    for wrong in (["ada", "--new"], [], ["ada"]):
        assert outcore("pool", "key", *wrong).exit_code == 2


def test_a_key_is_made_for_a_user(served_here: Served, tmp_path: Path) -> None:
    said = document("pool", "key", "ada", "--uid", 1001, "--gid", 100, "--gid", 200)
    assert said == {"user": "ada", "uid": 1001, "gids": [100, 200], "key": "ada.key"}
    assert Path("ada.key").stat().st_mode & 0o777 == 0o600
    assert "exists" in refusal("pool", "key", "ada", "--uid", 1, "--gid", 1)
    assert "--uid" in refusal("pool", "key", "nobody knows", "-o", "x")
    assert "servers need the pool's" in refusal(
        "pool", "key", "eve", "--uid", 1, "--gid", 1, "--key", "ada.key"
    )
    lines("pool", "key", "root", "-o", "root.key")
    assert Path("root.key").read_text().split()[1].startswith("root:0:0")
    with oc.connect(served_here.url) as root:
        root.mkdir("d")
        root.chmod("d", 0o777)
    lines("cp", "ada.key", f"{served_here.url}/d/f", "--key", "ada.key")
    found = document("stat", f"{served_here.url}/d/f")["entries"][0]
    assert (found["owner"], found["group"]) == (1001, 100)
