"""Names with ``::`` and brackets: the name of an existing file means that file."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import outcore
from served import Served

import outcore as oc
from outcore.errors import InvalidError, NotFoundError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str) -> float:
    with oc.from_array(name, "read", if_exists="overwrite", progress=False) as found:
        return float(found[0])


def write_hdf5(name: str, **datasets: float) -> None:
    with h5py.File(name, "w") as file:
        for dataset, value in datasets.items():
            file[dataset.replace("_", "::")] = np.full(3, value)


def test_inputs() -> None:
    write_hdf5("n.h5", u=1, run_1=2, a_b_c=3)
    write_hdf5("no suffix", u=4)
    assert read("n.h5::u") == 1
    assert read("n.h5::run::1") == 2
    assert read("n.h5::a::b::c") == 3
    assert read("no suffix::u") == 4
    # A file of exactly this name comes first, then the HDF5 file with the longest name.
    np.save("x.npy", np.full(3, 5.0))
    Path("x.npy").rename("n.h5::u")
    assert read("n.h5::u") == 5
    write_hdf5("n.h5::run.h5", u=6)
    assert read("n.h5::run.h5::u") == 6
    assert read("n.h5::run::1") == 2
    Path("d::1").mkdir()
    np.save("d::1/x.npy", np.full(3, 7.0))
    assert read("d::1/x.npy") == 7
    write_hdf5("d::1/n.h5", u=8)
    assert read("d::1/n.h5::u") == 8


def test_inputs_that_are_not_there() -> None:
    Path("notes").write_text("mine")
    with pytest.raises(NotFoundError, match=r"no file notes::u;"):
        read("notes::u")
    with pytest.raises(NotFoundError, match=r"no file none\.h5;"):
        read("none.h5::u")
    write_hdf5("n.h5", u=1)
    with pytest.raises(NotFoundError, match=r"no dataset v::w in n\.h5"):
        read("n.h5::v::w")


@pytest.mark.parametrize("name", ["t::1.npy", "t.h5x::1.npy", "a.h5::d/x.npy", "t::.npy"])
def test_npy_files_have_any_name(name: str) -> None:
    Path("a.h5::d").mkdir()
    before = {path.name for path in Path().iterdir()}
    oc.export_array(np.ones(3), name, progress=False)
    assert (np.load(name) == 1).all()
    assert {path.name for path in Path().iterdir()} <= before | {name}


def test_other_formats_have_any_name() -> None:
    oc.export_array(np.ones(3), "u::1.zarr", progress=False)
    oc.export_array(np.ones(3), "v::1", format="zarr", progress=False)
    oc.export_array(np.ones(3), "r.h5::1", format="raw", progress=False)
    oc.from_array(np.ones(3), "A::1", progress=False).close()
    made = {path.name for path in Path().iterdir()}
    assert made == {"u::1.zarr", "v::1", "r.h5::1", "A::1"}
    for name in ("u::1.zarr", "v::1", "A::1"):
        assert read(name) == 1
    assert (np.fromfile("r.h5::1") == 1).all()


def test_datasets_are_written_to_hdf5_files_only() -> None:
    oc.export_array(np.full(3, 1.0), "n.h5::run::1", progress=False)
    oc.export_array(np.full(3, 2.0), "m::u", format="hdf5", progress=False)
    with h5py.File("n.h5") as file, h5py.File("m") as other:
        assert file["run::1"][0] == 1
        assert other["u"][0] == 2
    assert read("n.h5::run::1") == 1
    assert read("m::u") == 2
    with pytest.raises(InvalidError, match="need a format"):
        oc.export_array(np.ones(3), "m::v", progress=False)
    # A file of exactly this name is the one to replace.
    Path("n.h5::u").write_text("a file of its own")
    oc.export_array(
        np.full(3, 3.0), "n.h5::u", format="hdf5", if_exists="overwrite", progress=False
    )
    with h5py.File("n.h5::u") as file:
        assert file["data"][0] == 3
    assert read("n.h5::run::1") == 1


def test_the_command_line_writes_no_other_file() -> None:
    oc.from_array(2 * np.eye(5), "A", progress=False).close()
    np.save("b.npy", np.ones(5))
    Path("run").write_text("my notes")
    for arguments in (
        ["solve", "A", "b.npy", "-o", "run::x.npy", "--overwrite"],
        ["convert", "b.npy", "run::copy.npy"], ["convert", "b.npy", "run::B"],
        ["solve", "A", "b.npy", "-o", "run::x"],
    ):  # fmt: skip
        result = outcore(*arguments)
        assert result.exit_code == 0, result.stderr
    assert Path("run").read_text() == "my notes"
    assert (np.load("run::x.npy") == 0.5).all()
    assert (np.load("run::copy.npy") == 1).all()
    assert (read("run::B"), read("run::x")) == (1, 0.5)


def test_brackets_in_a_pool(served_here: Served) -> None:
    """Each verb that takes patterns uses the file of exactly that name, and leaves the other."""
    url = served_here.url
    for name, text in (("one", "bracket"), ("two", "other")):
        Path(name).write_text(text)
    outcore("cp", "one", f"{url}/f[1]")
    outcore("cp", "two", f"{url}/f1")
    for arguments in (
        ["cp", f"{url}/f[1]", "copied"], ["chmod", "600", f"{url}/f[1]"],
        ["chown", "1:1", f"{url}/f[1]"], ["attr", "set", f"{url}/f[1]", "a", "1"],
        ["mv", f"{url}/f[1]", f"{url}/g[1]"],
    ):  # fmt: skip
        assert outcore(*arguments).exit_code == 0
    assert Path("copied").read_text() == "bracket"
    with oc.connect(url) as pool:
        moved, other = pool.stat("g[1]"), pool.stat("f1")
        assert (moved.mode, moved.owner, pool.listxattr("g[1]")) == (0o600, 1, ["a"])
        assert (other.mode, pool.listxattr("f1")) == (0o644, [])
        oc.from_array(np.ones(3), pool / "A[1]", progress=False).close()
        oc.from_array(np.ones(4), pool / "A1", progress=False).close()
    assert "g[1]" in outcore("stat", f"{url}/g[1]").stdout
    assert outcore("attr", "list", f"{url}/g[1]").stdout == "a\n"
    assert outcore("ls", f"{url}/A[1]").stdout == outcore("ls", f"{url}/A1").stdout
    for verb in ("info", "verify"):
        assert "A[1]" in outcore(verb, f"{url}/A[1]").stdout
    assert outcore("rm", "-y", f"{url}/A[1]", f"{url}/g[1]").exit_code == 0
    assert outcore("ls", url).stdout == "A1\nf1\n"
