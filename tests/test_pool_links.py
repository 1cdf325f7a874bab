"""Symbolic links in a pool, compared with those of a directory of the disk."""

import errno
import json
import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from fsspec.implementations.local import LocalFileSystem
from served import Served

import outcore as oc
from outcore.pool.fsck import fsck
from outcore.pool.fsspec_filesystem import OutcoreFileSystem

MOST_LINKS = 40


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "p0", tmp_path / "p1"]) as opened:
        yield opened


def test_a_link_is_made_read_renamed_and_removed(pool: oc.Pool) -> None:
    pool.mkdir("d")
    (pool / "d/f").write_bytes(b"content")
    pool.symlink("../d/f", "d/link")
    link = pool / "d/link"
    assert link.is_symlink()
    assert link.is_file()
    assert not link.is_dir()
    assert link.exists()
    assert link.readlink() == pool.readlink(link) == "../d/f"
    assert link.read_bytes() == b"content"
    assert link.stat().nbytes == 7
    assert not link.stat().is_link
    found = pool.lstat(link)
    assert (found.target, found.nbytes, found.mode, found.is_directory) == (
        "../d/f",
        6,
        0o777,
        False,
    )
    assert found == link.stat(follow_symlinks=False) == dict(pool.scandir("d"))[link]
    assert link.resolve() == pool / "d/f"
    pool.mv(link, "moved")
    # The target is relative to the new directory, where it leads outside.
    assert (pool / "moved").is_symlink()
    assert not (pool / "moved").exists()
    pool.rm("moved")
    assert pool.ls() == ["d"]
    assert pool.ls("d") == ["f"]


def test_errors_name_the_link(pool: oc.Pool) -> None:
    pool.mkdir("d")
    (pool / "f").write_bytes(b"1")
    for target, link in (("none", "broken"), ("/etc", "absolute"), ("../x", "above"), ("me", "me")):
        pool.symlink(target, link)
        assert (pool / link).is_symlink()
        assert not (pool / link).exists()
        assert not (pool / link).is_file()
        assert not (pool / link).is_dir()
    with pytest.raises(oc.errors.NotFoundError, match="none"):
        pool.open("broken")
    for link in ("absolute", "above"):
        for path in (link, f"{link}/more"):
            with pytest.raises(oc.errors.NotFoundError, match="which leads outside"):
                pool.open(path)
    with pytest.raises(oc.errors.LinkLoopError, match="at most 40") as found:
        pool.stat("me")
    assert isinstance(found.value, OSError)
    assert found.value.errno == errno.ELOOP
    with pytest.raises(oc.errors.ExistsError):
        pool.symlink("x", "f")
    with pytest.raises(oc.errors.NotFoundError):
        pool.symlink("x", "none/link")
    with pytest.raises(oc.errors.InvalidError, match="symbolic link"):
        pool.readlink("f")
    for target in ("", "x" * 4096, "a\0b"):
        with pytest.raises(oc.errors.InvalidError):
            pool.symlink(target, "new")
    with pytest.raises(oc.errors.NotFoundError):
        pool.stat("f/more")


def test_as_many_links_are_followed_as_the_system_follows(pool: oc.Pool, tmp_path: Path) -> None:
    for root in (pool / "", tmp_path):
        root.joinpath("0").write_bytes(b"end") if isinstance(root, Path) else (
            (root / "0").write_bytes(b"end")
        )
        for number in range(1, MOST_LINKS + 2):
            (root / str(number)).symlink_to(str(number - 1))
        assert (root / str(MOST_LINKS)).read_bytes() == b"end"
        with pytest.raises(OSError) as found:  # noqa: PT011  # its number is compared
            (root / str(MOST_LINKS + 1)).read_bytes()
        assert found.value.errno == errno.ELOOP


def test_writers_follow_links(pool: oc.Pool) -> None:
    pool.mkdir("d")
    pool.symlink("d/new", "link")
    with pool.open("link", "w") as file:
        file.write(b"first")
    assert (pool / "link").is_symlink()
    assert (pool / "d/new").read_bytes() == b"first"
    with pool.open("link", "a") as file:
        file.write(b", second")
    (pool / "link").write_bytes((pool / "link").read_bytes() + b", third")
    assert (pool / "link").is_symlink()
    assert (pool / "d/new").read_bytes() == b"first, second, third"
    with pytest.raises(oc.errors.ExistsError):
        pool.open("link", "x")
    pool.symlink("missing/new", "astray")
    with pytest.raises(oc.errors.NotFoundError):
        (pool / "astray").write_bytes(b"1")
    with pytest.raises(oc.errors.NotFoundError):
        OutcoreFileSystem(pool=pool).pipe_file("/astray", b"1")
    assert (pool / "astray").is_symlink()
    pool.chmod("link", 0o640)
    pool.utime("link", ns=(0, 5))
    pool.setxattr("link", "a", b"1")
    assert pool.getxattr("d/new", "a") == b"1"
    assert pool.listxattr("link") == ["a"]
    found = pool.stat("d/new")
    assert (found.mode, found.modified_ns) == (0o640, 5)
    pool.utime("link", ns=(0, 6), follow_symlinks=False)
    pool.chown("link", 7, follow_symlinks=False)
    assert (pool.lstat("link").modified_ns, pool.lstat("link").owner) == (6, 7)
    assert (pool.stat("link").modified_ns, pool.stat("link").mode) == (5, 0o640)


def test_arrays_behind_links(pool: oc.Pool) -> None:
    values = np.arange(12.0).reshape(3, 4)
    pool.mkdir("data/deep")
    pool.symlink("data/deep", "here")
    oc.from_array(values, pool / "here/A", progress=False).close()
    pool.symlink("data/deep/A", "A")
    for path in ("data/deep/A", "here/A", "A"):
        with oc.open_array(pool / path, "r+") as array:
            assert np.array_equal(array[:, :], values)
            array[0, 0] = values[0, 0] = values[0, 0] + 1
    oc.linalg.lu_factor(
        oc.from_array(np.eye(3) + 1, pool / "here/B", progress=False), progress=False
    )
    assert (pool / "data/deep/B.lu").is_dir()


@pytest.mark.parametrize("verb", ["rename", "replace"])
@pytest.mark.parametrize(
    ("old", "new"), [("l", "l/x"), ("l/f", "l"), ("l/again", "l"), ("l", "l/again"), ("l", "l/f")]
)
def test_a_link_moves_below_itself_as_on_the_disk(
    pool: oc.Pool, tmp_path: Path, old: str, new: str, verb: str
) -> None:
    """The last names of a rename are links themselves, also if another path leads through them."""
    real = tmp_path / "real"
    (real / "d").mkdir(parents=True)
    pool.mkdir("d")
    for root in (real, pool / ""):
        (root / "d/f").write_bytes(b"content")
        (root / "d/again").symlink_to("f")
        (root / "l").symlink_to("d")
    (real / old).replace(real / new)
    pool.mv(old, new) if verb == "rename" else pool.core.replace(old, new)
    for name in ("", "d"):
        found = sorted(pool.ls(name))
        assert found == sorted(os.listdir(real / name))
        for each in found:
            here, there = pool / name / each, real / name / each
            assert here.is_symlink() == there.is_symlink()
            assert not there.is_symlink() or here.readlink() == os.readlink(there)
            assert not there.is_file() or here.read_bytes() == there.read_bytes()


DEPTH = 3


def test_random_paths_lead_where_those_of_the_disk_lead(pool: oc.Pool, tmp_path: Path) -> None:
    draw = random.Random(4)
    (tmp_path / "real").mkdir()
    for step in range(400):
        path = "/".join(draw.choice("abcd") for _ in range(draw.randint(1, DEPTH)))
        target = "/".join(draw.choice("abcd..") for _ in range(draw.randint(1, DEPTH)))
        target = target.replace(".", "..") if draw.random() < 0.8 else f"./{target}//"
        kind = draw.choice(["link", "link", "mkdir", "file", "remove", "look", "look", "look"])
        leaves = leads_outside(path, tmp_path / "real")
        answers = [act(kind, path, target, root) for root in (tmp_path / "real", pool)]
        if answers[1] == "outside":
            assert leaves, (step, kind, path, target)
        else:
            assert answers[0] == answers[1], (step, kind, path, target)


def leads_outside(path: str, top: Path) -> bool:
    """Whether a step of the path, with links followed, is outside of the directory `top`."""
    at, pending, links = top, path.split("/")[::-1], 0
    while pending and links <= MOST_LINKS:
        step = pending.pop()
        if step == "..":
            at = at.parent
        elif (at / step).is_symlink():
            links += 1
            pending += os.readlink(at / step).split("/")[::-1]
        else:
            at /= step
        if not at.is_relative_to(top):
            return True
    return not Path(os.path.realpath(top / path)).is_relative_to(top)


def act(kind: str, path: str, target: str, root: Any) -> Any:
    """Do one operation; return its result, or what its error says."""
    place = root / path
    try:
        if kind == "link":
            return place.symlink_to(target)
        # A pool makes the directories above a new name.
        if kind in ("file", "mkdir") and not place.parent.is_dir():
            return "no directory"
        if kind == "file":
            with place.open("x" if isinstance(root, oc.Pool) else "xb") as file:
                file.write(path.encode())
            return None
        if kind == "mkdir":
            return place.mkdir() if isinstance(root, Path) else root.mkdir(place)
        if kind == "remove":
            if not place.is_symlink() and not place.is_file():
                return "no file"
            return place.unlink() if isinstance(root, Path) else root.rm(place)
        if place.is_dir():
            return "directory"
        return place.read_bytes()
    except OSError as error:
        if "outside" in str(error):
            return "outside"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return "none"
        if isinstance(error, FileExistsError):
            return "exists"
        return errno.errorcode[error.errno or 0]


def run(*words: Any, code: int = 0) -> str:
    result = outcore(*words)
    assert result.exit_code == code, result.output
    return result.stdout


def tree_with_links(top: Path) -> None:
    (top / "d").mkdir(parents=True)
    (top / "d/f").write_bytes(b"content")
    for link, target in (
        ("file", "d/f"), ("directory", "d"), ("broken", "no/thing"), ("outside", "/etc"),
        ("d/up", ".."), ("loop", "loop"),
    ):  # fmt: skip
        (top / link).symlink_to(target)


def links_below(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): os.readlink(path)
        for path in top.rglob("*")
        if path.is_symlink()
    }


def test_copies_are_those_of_the_systems_cp(served_here: Served, tmp_path: Path) -> None:
    url = f"{served_here.url}/copies"
    run("mkdir", url)
    tree_with_links(tmp_path / "tree")
    run("cp", "-r", "tree", f"{url}/tree")
    run("cp", "-r", f"{url}/tree", f"{url}/again")
    run("cp", "-rp", f"{url}/again", "back")
    subprocess.run(["cp", "-r", "tree", "theirs"], check=True)
    subprocess.run(["diff", "-r", "--no-dereference", "back", "theirs"], check=True)
    assert links_below(tmp_path / "back") == links_below(tmp_path / "theirs")
    # A link as a source is copied itself with -r, and followed without.
    for source in ("file", "directory", "broken"):
        run("cp", "-r", f"tree/{source}", f"{url}/s-{source}")
        run("cp", "-r", f"{url}/s-{source}", f"s-{source}")
        assert os.readlink(f"s-{source}") == os.readlink(f"tree/{source}")
    run("cp", f"{url}/tree/file", "followed")
    assert Path("followed").read_bytes() == b"content"
    assert not Path("followed").is_symlink()
    assert "tree/no" in outcore("cp", f"{url}/tree/broken", "x").output
    # A link is replaced by -f, and its target stays.
    run("cp", "-rf", "tree/file", f"{url}/tree/d/f")
    assert run("stat", f"{url}/tree/d/f").count("link") == 1
    run("mv", f"{url}/s-directory", "moved")
    assert os.readlink("moved") == "d"
    assert "s-directory" not in run("ls", url)
    run("mv", "moved", f"{url}/renamed")
    run("mv", f"{url}/renamed", f"{url}/twice")
    assert not os.path.lexists("moved")
    (entry,) = json.loads(run("ls", "-d", "--json", f"{url}/twice"))["entries"]
    assert (entry["kind"], entry["target"]) == ("link", "d")


def test_links_of_others_are_preserved_as_their_files(
    served_here: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cp -p` does, the copy has the user's own links if he may not give them away."""
    ada, mtime_ns = 1001, 5_000_000_000
    key = served_here.key_of("ada", ada, ada)
    with oc.connect(served_here.url, key=served_here.key) as root:
        root.mkdir("of-root")
        (root / "of-root/f").write_bytes(b"content")
        root.symlink("f", "of-root/l")
        root.utime("of-root/l", ns=(0, mtime_ns), follow_symlinks=False)
        root.mkdir("home")
        root.chown("home", ada, ada)
    with oc.connect(served_here.url, key=key) as his:
        for source in ("of-root", "of-root/l"):
            name = source.replace("/", "-")
            oc.copy_files(his / source, his / f"home/{name}", recursive=True, preserve=True,
                          progress=False)  # fmt: skip
        for name in ("of-root/l", "of-root-l"):
            found = his.lstat(f"home/{name}")
            assert (found.target, found.owner, found.modified_ns) == ("f", ada, mtime_ns)

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        # The system refuses to change the owner, as it does for all users but root.
        monkeypatch.setattr(os, "chown", refuse)
        oc.copy_files(his / "of-root", tmp_path / "copy", recursive=True, preserve=True,
                      progress=False)  # fmt: skip
        assert os.readlink(tmp_path / "copy/l") == "f"
        assert (tmp_path / "copy/l").lstat().st_mtime_ns == mtime_ns
        oc.move_files(tmp_path / "copy/l", his / "home/moved", progress=False)
        assert (his.lstat("home/moved").target, his.lstat("home/moved").owner) == ("f", ada)


def test_verbs_show_and_remove_the_link(served_here: Served, tmp_path: Path) -> None:
    url = f"{served_here.url}/verbs"
    tree_with_links(tmp_path / "tree")
    run("cp", "-r", "tree", url)
    rows = run("ls", "-l", url).splitlines()
    assert [row.split(maxsplit=6)[6] if " -> " in row else "" for row in rows] == [
        "broken -> no/thing", "", "directory -> d", "file -> d/f", "loop -> loop",
        "outside -> /etc",
    ]  # fmt: skip
    assert all(row.startswith("lrwxrwxrwx") for row in rows if " -> " in row)
    assert run("ls", f"{url}/directory").split() == ["f", "up"]
    assert run("ls", "-l", f"{url}/directory").splitlines()[0].endswith("directory -> d")
    assert "no/thing" in run("stat", f"{url}/broken")
    run("rm", "-y", f"{url}/directory", f"{url}/broken", f"{url}/loop")
    assert run("ls", url).split() == ["d", "file", "outside"]
    run("rm", "-ry", f"{url}/d")
    assert run("ls", url).split() == ["file", "outside"]
    report = json.loads(run("pool", "fsck", "--json", "--key", served_here.key, served_here.url))
    assert report["links"] >= 2
    assert report["is_well"]


def test_fsck_counts_links_and_a_copy_of_the_pool_has_them(pool: oc.Pool) -> None:
    (pool / "f").write_bytes(b"1")
    pool.symlink("f", "l")
    pool.mkdir("d")
    pool.symlink("../f", "d/l")
    report = fsck(pool)
    assert (report.files, report.links, report.is_well) == (1, 2, True)
    assert "1 files, 2 symbolic links" in str(report)


def test_fsspec_describes_links_as_its_local_file_system(pool: oc.Pool, tmp_path: Path) -> None:
    ours, theirs = OutcoreFileSystem(pool=pool), LocalFileSystem()
    tree_with_links(tmp_path / "tree")
    oc.copy_files(tmp_path / "tree", pool / "tree", recursive=True, progress=False)
    keys = ("type", "size", "islink", "destination", "mode")
    for name in ("d", "d/f", "file", "directory", "d/up", "outside/nothing", "loop", "broken"):
        answers: list[Any] = []
        for system, root in ((ours, "/tree"), (theirs, f"{tmp_path}/tree")):
            try:
                found = system.info(f"{root}/{name}")
            except OSError:
                found = {"type": "error"}
            answers.append(
                {key: found.get(key) for key in keys if found.get("type") != "directory"}
            )
            answers[-1]["is directory"] = found["type"] == "directory"
            answers[-1]["islink"] = found.get("islink")
        if name in ("broken", "loop"):  # the local one raises an error here
            assert answers[0] == {
                "type": "other", "size": 0, "islink": True, "is directory": False,
                "destination": os.readlink(tmp_path / "tree" / name),
                "mode": stat.S_IFLNK | 0o777,
            }  # fmt: skip
        else:
            assert answers[0] == answers[1], name
    assert ours.cat_file("/tree/file") == b"content"
    with ours.open("/tree/file", "wb") as file:
        file.write(b"new")
    assert (pool / "tree/file").is_symlink()
    assert (pool / "tree/d/f").read_bytes() == b"new"
    ours.rm("/tree/directory", recursive=True)
    assert (pool / "tree/d/f").exists()
    assert "directory" not in pool.ls("tree")


def test_fsspec_lists_links_as_its_local_file_system(pool: oc.Pool, tmp_path: Path) -> None:
    ours, theirs = OutcoreFileSystem(pool=pool), LocalFileSystem()
    tree_with_links(tmp_path / "top/tree")
    (tmp_path / "top/tree/x").symlink_to(".")
    (tmp_path / "top/tree/out").symlink_to("../keep")
    (tmp_path / "top/keep/deep").mkdir(parents=True)
    (tmp_path / "top/keep/deep/f").write_bytes(b"kept")
    oc.copy_files(tmp_path / "top", pool / "top", recursive=True, progress=False)
    below: list[list[Any]] = []
    for system, root in ((ours, "/top"), (theirs, f"{tmp_path}/top")):
        cut = len(root)
        answers: list[Any] = []
        for name in ("tree", "tree/x", "tree/out", "tree/file", "tree/d"):
            answers.append(sorted(
                (each["name"][cut:], each["type"], each["islink"], each.get("destination"),
                 each["mode"] if each["islink"] else stat.S_IFMT(each["mode"]),
                 0 if each["type"] == "directory" or system.isdir(each["name"]) else each["size"])
                for each in system.ls(f"{root}/{name}", detail=True)
            ))  # fmt: skip
            answers.append(sorted(each[cut:] for each in system.find(f"{root}/{name}")))
        for options in ({"withdirs": True}, {"maxdepth": 1}, {"withdirs": True, "maxdepth": 2}):
            answers.append(sorted(each[cut:] for each in system.find(f"{root}/tree", **options)))
        for topdown in (True, False):
            answers.append(sorted(
                (path[cut:], sorted(directories), sorted(files))
                for path, directories, files in system.walk(f"{root}/tree", topdown=topdown)
            ))  # fmt: skip
        for pattern in ("tree/**", "tree/*", "tree/out/*", "tree/**/f", "**"):
            answers.append(sorted(each[cut:] for each in system.glob(f"{root}/{pattern}")))
        below.append(answers)
    assert below[0] == below[1]
    assert ours.info("/top/tree/out")["type"] == "directory"


@pytest.mark.parametrize("maxdepth", [None, 9])
def test_fsspec_removes_links_and_keeps_what_lies_behind(
    pool: oc.Pool, maxdepth: int | None
) -> None:
    system = OutcoreFileSystem(pool=pool)
    for directory in ("tree", "tree/d", "keep"):
        pool.mkdir(directory)
    (pool / "keep/f").write_bytes(b"kept")
    (pool / "tree/d/f").write_bytes(b"gone")
    for target, link in (("../keep", "out"), (".", "x"), ("../../keep/f", "d/file"), ("no", "b")):
        pool.symlink(target, f"tree/{link}")
    system.rm("/tree", recursive=True, maxdepth=maxdepth)
    assert pool.ls() == ["keep"]
    assert (pool / "keep/f").read_bytes() == b"kept"


def test_clients_follow_links_below_a_handle(pool: oc.Pool) -> None:
    pool.mkdir("d")
    pool.mkdir("d/e")
    (pool / "d/e/f").write_bytes(b"content")
    for target, link in (("d", "l"), ("e", "d/down"), ("e/../e", "d/around"), ("../d", "d/up")):
        pool.symlink(target, link)
    core, root = pool.core, "\x001"
    for path in ("l/e/f", "l/down/f", "d/down/f", "l/around/f", "d/up/e/f"):
        assert core.follow(f"{root}/{path}") == f"{root}/d/e/f"
        assert core.handle(f"{root}/{path}") == core.handle("d/e/f")
    # The client does not know the directories above a handle.
    pool.symlink("../d", "above")
    for path in ("above", "above/e"):
        with pytest.raises(oc.errors.InvalidError, match="have a handle"):
            core.follow(f"{root}/{path}")
