"""Bad input for arrays: one clear error, and no partial array that counts as complete."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import values
from timeouts import HANG_S

import outcore as oc
from outcore.errors import (
    ClosedError,
    CorruptError,
    ExistsError,
    ForkedError,
    IncompleteError,
    InvalidError,
    JournalError,
    NotFoundError,
    ReadOnlyError,
    TruncatedError,
)

SHARD = "c/0/0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a complete array of 40 by 30 float64."""
    with oc.create_array(tmp_path / "A", (40, 30), chunks=(16, 16)) as array:
        array[...] = values((40, 30), "f8")
    return tmp_path / "A"


@pytest.fixture
def read_only(path: Path) -> Iterator[Path]:
    """Make the array read-only; for root by a mount, since permission bits do not bind root."""
    if os.geteuid() == 0:
        try:
            subprocess.run(["mount", "--bind", path, path], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot mount here: {error}")
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
            yield path
        finally:
            subprocess.run(["umount", "-l", path], check=True)
    else:
        folders = [path, path / "c", path / "c/0"]
        for folder in folders:
            folder.chmod(0o555)
        (path / SHARD).chmod(0o444)
        yield path
        for folder in folders:
            folder.chmod(0o755)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((path / "zarr.json").read_text())
    change(document)
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_missing_array(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    for name in ["none", "none/below", "empty", "file", "file/below"]:
        with pytest.raises(NotFoundError, match="there is no array"):
            oc.open_array(tmp_path / name, mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]


def test_names_that_are_no_paths() -> None:
    for name in ["/", 3, None, b"/tmp/x\0y"]:
        with pytest.raises(InvalidError):
            oc.open_array(name)  # type: ignore[arg-type]


def test_unknown_mode(path: Path) -> None:
    for mode in ["w", "a", "rw", "", None]:
        with pytest.raises(InvalidError, match="mode"):
            oc.open_array(path, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_missing_shard_file(path: Path, mode: Any) -> None:
    (path / SHARD).unlink()
    with pytest.raises(NotFoundError, match=r"shard file A/c/0/0 is missing"):
        oc.open_array(path, mode)


@pytest.mark.parametrize("length", [0, 1, 4096, 20_000])
def test_truncated_shard_file(path: Path, length: int) -> None:
    whole = (path / SHARD).stat().st_size
    os.truncate(path / SHARD, length)
    with pytest.raises(TruncatedError, match=f"need {whole} bytes .* have {length}"):
        oc.open_array(path)


def test_shard_file_of_another_array(path: Path) -> None:
    with (path / SHARD).open("ab") as file:
        file.write(b"more")
    with pytest.raises(TruncatedError, match="need"):
        oc.open_array(path)


@pytest.mark.parametrize("at", [-1, -4, -5, -100])
def test_corrupt_index(path: Path, at: int) -> None:
    data = bytearray((path / SHARD).read_bytes())
    data[at] ^= 0x10
    (path / SHARD).write_bytes(data)
    with pytest.raises(CorruptError, match="CRC-32C"):
        oc.open_array(path)


def test_a_whole_index_of_another_layout(path: Path) -> None:
    """The same length and number of chunks in another order, as other software writes them."""
    with oc.open_array(path) as array:
        model = array[...]
    edit(path, lambda d: d["attributes"]["outcore"].update(chunk_order="column-major"))
    with pytest.raises(InvalidError, match="other software"):
        oc.open_array(path)
    oc.repack(path, progress=False)
    with oc.open_array(path) as array:
        np.testing.assert_array_equal(array[...], model)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", "{}", '{"zarr_format": 3}', "\x00" * 500, "\ud800"]
)
def test_unreadable_metadata(path: Path, text: str) -> None:
    (path / "zarr.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(CorruptError, match=r"zarr\.json cannot be read"):
        oc.open_array(path)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [0, 30]},
        {"shape": [-1, 30]},
        {"shape": ["many"]},
        {"shape": None},
        {"shape": [2**70, 30]},
        {"data_type": "float99"},
        {"data_type": ["f8"]},
        {"codecs": []},
        {"codecs": [{"name": "sharding_indexed"}]},
        {"chunk_grid": {}},
        {"attributes": {"outcore": {"format": 1}}},
    ],
)
def test_impossible_metadata(path: Path, change: dict[str, Any]) -> None:
    edit(path, lambda document: document.update(change))
    with pytest.raises(CorruptError, match="cannot be read"):
        oc.open_array(path)


@pytest.mark.parametrize("attributes", [{"outcore": "text"}, {}, None])
def test_attributes_of_other_software(path: Path, attributes: Any) -> None:
    # Another program may use the name for its own attribute.
    edit(path, lambda document: document.update(attributes=attributes))
    with pytest.raises(InvalidError, match="no array of outcore's own layout"):
        oc.open_array(path)


def test_damaged_generation(path: Path) -> None:
    (path / "outcore.generation").write_text("x" * 10)
    with pytest.raises(CorruptError, match="no number"):
        oc.open_array(path, "r+")[0, 0] = 7
    assert oc.open_array(path)[0, 0] == values((40, 30), "f8")[0, 0]


def test_read_only_directory(read_only: Path) -> None:
    model = values((40, 30), "f8")
    np.testing.assert_array_equal(oc.open_array(read_only)[...], model)
    for act in [
        lambda: oc.open_array(read_only, "r+"),
        lambda: oc.create_array(read_only / "B", 3),
        lambda: oc.create_array(read_only / "B", 3, fill=lambda i: np.zeros(3)),
        lambda: oc.create_group(read_only / "G"),
        lambda: oc.from_array(model, read_only / "B"),
    ]:
        with pytest.raises(ReadOnlyError, match=r"permission|Read-only"):
            act()
    assert not (read_only / "B").exists()


def test_writing_to_a_reader(path: Path) -> None:
    array = oc.open_array(path)
    with pytest.raises(ReadOnlyError, match=r'mode="r\+"'):
        array[0, 0] = 1.0
    np.testing.assert_array_equal(array[...], values((40, 30), "f8"))


def test_existing_target(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("text")
    for name in ["A", "file", "mine"]:
        with pytest.raises(ExistsError, match="exists"):
            oc.create_array(tmp_path / name, 3)
        with pytest.raises(ExistsError, match="exists"):
            oc.from_array(np.ones(3), tmp_path / name)
    for name in ["file", "mine"]:
        with pytest.raises(ExistsError, match="not overwritten"):
            oc.create_array(tmp_path / name, 3, if_exists="overwrite")
    with pytest.raises(ExistsError):
        oc.create_group(path)
    assert (tmp_path / "mine/notes.txt").read_text() == "text"
    np.testing.assert_array_equal(oc.open_array(path)[...], values((40, 30), "f8"))


@pytest.mark.parametrize("attributes", [{"a": object()}, {"a": np.nan}, {"outcore": 1}])
def test_attributes_that_a_group_cannot_have(tmp_path: Path, attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="attribute"):
        oc.create_group(tmp_path / "G", attributes=attributes)
    assert not (tmp_path / "G").exists()


def test_overwriting(path: Path, tmp_path: Path) -> None:
    array = oc.create_array(path, (3, 3), "i4", if_exists="overwrite")
    assert array.shape == (3, 3)
    assert not array[...].any()
    (tmp_path / "empty").mkdir()
    oc.create_array(tmp_path / "empty", 3)


def test_a_group_in_place_of_an_array_has_nothing_of_it(path: Path) -> None:
    oc.create_group(path, if_exists="overwrite", attributes={"a": 1})
    assert [each.name for each in path.iterdir()] == ["zarr.json"]
    oc.create_array(path / "in", 3)
    oc.create_group(path, if_exists="overwrite")
    assert oc.open_array(path / "in").shape == (3,)


def test_an_array_is_not_copied_into_itself(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    for name in ("A/B", "A/c/B", "link/B"):
        with pytest.raises(InvalidError, match=r"lies in .*/A, its source"):
            oc.from_array(oc.open_array(path), tmp_path / name)
    before = sorted(each.name for each in path.iterdir())
    for name in ("b.npy", "zarr.json"):
        with pytest.raises(InvalidError, match=r"lies in .*/A, its source"):
            oc.export_array(oc.open_array(path), path / name, format="npy", if_exists="overwrite")
    assert sorted(each.name for each in path.iterdir()) == before
    np.testing.assert_array_equal(oc.open_array(path)[...], values((40, 30), "f8"))


def test_an_array_is_not_copied_onto_itself(path: Path) -> None:
    with pytest.raises(InvalidError, match="itself"):
        oc.from_array(oc.open_array(path), path, if_exists="overwrite")
    np.testing.assert_array_equal(oc.open_array(path)[...], values((40, 30), "f8"))


def test_a_copy_that_was_stopped_is_incomplete(tmp_path: Path) -> None:
    class Failing:
        shape, dtype = (4000, 30), np.dtype("f8")

        def __getitem__(self, box: tuple[slice, ...]) -> np.ndarray[Any, Any]:
            if box[0].start:
                raise ZeroDivisionError
            return np.ones([s.stop - s.start for s in box])

    with pytest.raises(ZeroDivisionError):
        oc.from_array(Failing(), tmp_path / "A", chunks=(16, 16), memory=400_000)
    for mode in ("r", "r+"):
        with pytest.raises(IncompleteError, match="again with the same arguments"):
            oc.open_array(tmp_path / "A", mode)  # type: ignore[arg-type]
    half = oc.open_array(tmp_path / "A", allow_incomplete=True)
    assert half.info().state == "incomplete"
    assert (half[:16] == 1).all()
    with pytest.raises(ExistsError):
        oc.from_array(np.ones((40, 30)), tmp_path / "A", resume=False)
    with pytest.raises(
        JournalError, match="another shape, type or layout; pass if_exists='overwrite'"
    ):
        oc.from_array(np.ones((40, 30)), tmp_path / "A")
    oc.from_array(np.ones((40, 30)), tmp_path / "A", if_exists="overwrite")
    assert oc.open_array(tmp_path / "A").info().state == "whole"


KILLED = """
import os, sys
import outcore as oc
from outcore.storage.volumes import Place
real = Place.make_small
def dies(where, name, *content):
    if {before} and name == "{name}":
        os.kill(os.getpid(), 9)
    real(where, name, *content)
    if name == "{name}":
        os.kill(os.getpid(), 9)
Place.make_small = dies
oc.create_array(sys.argv[1], 1000)
"""


@pytest.mark.parametrize(
    ("name", "before", "left"),
    [
        ("outcore.generation", True, None),
        ("outcore.generation", False, ["outcore.generation"]),
        ("zarr.json", True, ["c", "outcore.generation"]),
        ("zarr.json", False, ["c", "outcore.generation", "zarr.json"]),
    ],
)
def test_killed_while_it_is_made(
    tmp_path: Path,
    name: str,
    before: bool,
    left: list[str] | None,
    run_python: Callable[..., "subprocess.Popen[str]"],
) -> None:
    run = run_python(KILLED.format(name=name, before=before), str(tmp_path / "A"))
    _, errors = run.communicate(timeout=HANG_S)
    assert run.returncode == -9, errors
    if left is None:
        assert not (tmp_path / "A").exists()
    else:
        assert sorted(os.listdir(tmp_path / "A")) == left
        if "zarr.json" in left:
            assert not oc.open_array(tmp_path / "A")[...].any(), "whole, and zeros"
        else:
            with pytest.raises(IncompleteError, match="its making was stopped"):
                oc.open_array(tmp_path / "A")
        with pytest.raises(ExistsError):
            oc.create_array(tmp_path / "A", 1000)
    oc.create_array(tmp_path / "A", 1000, if_exists="overwrite")
    # outcore keeps files of others, whatever their names.
    (tmp_path / "B" / "c").mkdir(parents=True)
    with pytest.raises(ExistsError, match="no Zarr array"):
        oc.create_array(tmp_path / "B", 1000, if_exists="overwrite")


DIES_AT_REMOVAL = """
import os, sys
import outcore as oc
import outcore.array.create
import outcore.storage.volumes

class Volume:
    def __init__(self, real):
        self.real, self.left = real, int(sys.argv[2])
    def __getattr__(self, name):
        return getattr(self.real, name)
    def remove(self, name):
        if self.left == 0:
            os.kill(os.getpid(), 9)
        self.left -= 1
        self.real.remove(name)

def place(path):
    found = outcore.storage.volumes.place(path)
    return found._replace(volume=Volume(found.volume))

outcore.array.create.place = place
oc.create_array(sys.argv[1], 7, if_exists="overwrite")
"""


@pytest.mark.parametrize("removals", [0, 1, 2])
def test_killed_while_it_is_overwritten(
    path: Path, removals: int, run_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    run = run_python(DIES_AT_REMOVAL, str(path), str(removals))
    _, errors = run.communicate(timeout=HANG_S)
    assert run.returncode == -9, errors
    assert len(os.listdir(path)) == 3 - removals
    if removals:
        with pytest.raises(NotFoundError, match="missing"):
            oc.open_array(path)
    oc.create_array(path, 7, if_exists="overwrite")


def test_closed_array(path: Path) -> None:
    array = oc.open_array(path, "r+")
    array.close()
    array.close()
    for act in [
        lambda: array[0],
        lambda: array.__setitem__(0, 1.0),
        lambda: array.stream(),
        lambda: array.flush(),
        lambda: np.asarray(array),
    ]:
        with pytest.raises(ClosedError, match="open_array"):
            act()
    assert array.shape == (40, 30)
    assert array.info().state == "whole"


def in_forked_child(check: Callable[[], None]) -> str:
    """Run `check` in a forked child; return its error, or an empty string."""
    receiver, sender = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:
            os.write(sender, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as file:
        told = file.read()
    os.waitpid(child, 0)
    return told


def test_forked_process(path: Path) -> None:
    model = values((40, 30), "f8")
    array = oc.open_array(path, "r+")
    np.testing.assert_array_equal(array[...], model)

    def child() -> None:
        for act in [
            lambda: array[0],
            lambda: array.__setitem__(0, 1.0),
            lambda: list(array.stream()),
        ]:
            with pytest.raises(ForkedError, match="spawn"):
                act()
        with oc.open_array(path, "r+") as anew:
            np.testing.assert_array_equal(anew[...], model)
            anew[1, 1] = 77.0
        oc.from_array(model, path.parent / "child")

    assert in_forked_child(child) == ""
    # The parent continues.
    assert array[1, 1] == 77.0
    array[1, 1] = 78.0
    assert array[1, 1] == 78.0
    np.testing.assert_array_equal(oc.open_array(path.parent / "child")[...], model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": ()}, "dimension"),
        ({"shape": (0, 3)}, "at least 1"),
        ({"shape": (-1,)}, "at least 1"),
        ({"shape": (2.5,)}, "integers"),
        ({"shape": "12"}, "integers"),
        ({"shape": (1 << 40, 1 << 40)}, "2\\^62"),
        ({"shape": (1 << 70,)}, "2\\^62"),
        ({"dtype": "S5"}, "number type"),
        ({"dtype": object}, "number type"),
        ({"dtype": "M8[s]"}, "number type"),
        ({"dtype": np.longdouble}, "number type"),
        ({"dtype": [("a", "f8")]}, "number type"),
        ({"dtype": "nonsense"}, "not a NumPy type"),
        ({"chunks": (4,)}, "dimension"),
        ({"chunks": (0, 4)}, "at least 1"),
        ({"chunks": (-4, 4)}, "at least 1"),
        ({"chunks": (2.5, 4)}, "integers"),
        ({"shape": (1 << 16, 1 << 16), "chunks": (4096, 4096)}, "64 MiB"),
        ({"order": "A"}, "order"),
        ({"chunk_order": "spiral"}, "chunk order"),
        ({"dims": ("x",)}, "names"),
        ({"attributes": {"f": object()}}, "JSON"),
        ({"attributes": {"f": float("nan")}}, "JSON"),
        ({"attributes": {"outcore": 1}}, "own"),
    ],
)  # fmt: skip
def test_unusable_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.create_array(tmp_path / "A", **({"shape": (4, 4)} | arguments), reserve=False)
    assert os.listdir(tmp_path) == []


def test_npy_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_text("text")
    np.save(tmp_path / "object.npy", np.array([object()]), allow_pickle=True)
    for name in ["bad.npy", "object.npy"]:
        with pytest.raises(InvalidError, match=r"\.npy"):
            oc.from_array(tmp_path / name, tmp_path / "A")
    with pytest.raises(NotFoundError):
        oc.from_array(tmp_path / "none.npy", tmp_path / "A")
    with pytest.raises(InvalidError):
        oc.from_array(np.array(["text"]), tmp_path / "A")
    with pytest.raises(oc.OutcoreError, match="need"):
        oc.from_array(np.ones((600, 600)), tmp_path / "A", memory="64 KiB")
    assert not (tmp_path / "A").exists()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0, 2**31]), "i4"),
        ([-(2**15) - 1, 0], "i2"),
        (np.array([2**63], "u8"), "i8"),
        (np.array([1, 300], "u2"), "u1"),
    ],
)
def test_integers_beyond_the_type_are_not_wrapped(tmp_path: Path, values: Any, dtype: str) -> None:
    length = len(values)
    with (
        oc.create_array(tmp_path / "A", length, dtype) as array,
        pytest.raises(InvalidError, match=r"can hold, -?[0-9]+ to [0-9]+, have -?[0-9]+ at"),
    ):
        array[...] = values
    with pytest.raises(InvalidError, match="can hold"):
        oc.create_array(tmp_path / "B", length, dtype, fill=lambda box: np.asarray(values)[box])
    with oc.create_array(tmp_path / "C", 2, dtype) as array:
        array[...] = np.array([3, 100], "u2")
        assert array[...].tolist() == [3, 100]


def test_lists_that_are_no_array_are_refused(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "A", (2, 2)) as array:
        with pytest.raises(InvalidError, match="have a list of a list of 2, a list of 1; give one"):
            array[...] = [[1, 2], [3]]
        with pytest.raises(InvalidError, match="lose more than precision"):
            array[...] = "text"
