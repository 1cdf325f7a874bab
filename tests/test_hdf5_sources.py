"""HDF5 with elements in other files, behind links, or written by MATLAB; against h5py."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr

import outcore as oc
from outcore.errors import (
    ClosedError,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    TruncatedError,
)


def copied(source: Any, path: Path) -> Any:
    with oc.from_array(source, path / "copy", if_exists="overwrite", progress=False) as array:
        return array[...]


def refused(source: Any, path: Path, kind: type[Exception], message: str) -> None:
    """Check that a source raises this error and leaves no array."""
    with pytest.raises(kind, match=message):
        oc.from_array(source, path / "none", progress=False)
    assert not (path / "none").exists()
    with pytest.raises(kind, match=message):
        oc.export_array(source, path / "none.npy", progress=False)
    assert not (path / "none.npy").exists()


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """Create a virtual dataset of two parts, the second of which is virtual itself."""
    for i in range(2):
        with h5py.File(tmp_path / f"part{i}.h5", "w") as file:
            file["d"] = np.full(5, i + 1.0)
    inner, outer = h5py.VirtualLayout((5,), "f8"), h5py.VirtualLayout((12,), "f8")
    inner[:] = h5py.VirtualSource("part1.h5", "d", (5,))
    with h5py.File(tmp_path / "inner.h5", "w") as file:
        file.create_virtual_dataset("v", inner)
    outer[:5] = h5py.VirtualSource("part0.h5", "d", (5,))
    outer[5:10] = h5py.VirtualSource("inner.h5", "v", (5,))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("a", outer, fillvalue=-1)
    return tmp_path / "v.h5"


def test_virtual_datasets_are_copied_as_h5py_reads_them(virtual: Path) -> None:
    with h5py.File(virtual) as file:
        expected = file["a"][...]
        np.testing.assert_array_equal(copied(file["a"], virtual.parent), expected)
    # The last two elements have no source, and read as the dataset's fill value.
    assert expected.tolist() == [1.0] * 5 + [2.0] * 5 + [-1.0] * 2
    np.testing.assert_array_equal(copied(virtual, virtual.parent), expected)


@pytest.mark.parametrize("name", ["part0.h5", "part1.h5", "inner.h5"])
@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (os.remove, NotFoundError, "which is missing"),
        (lambda path: path.write_bytes(b"nothing"), NotFoundError, "which cannot be opened"),
        (lambda path: h5py.File(path, "w").close(), NotFoundError, "no such dataset"),
    ],
)
def test_missing_sources_of_virtual_datasets(
    virtual: Path, name: str, spoil: Callable[[Path], None], kind: Any, message: str
) -> None:
    spoil(virtual.parent / name)
    refused(virtual, virtual.parent, kind, f"{name}.*{message}")
    with h5py.File(virtual) as file:
        refused(file["a"], virtual.parent, kind, f"{name}.*{message}")


def test_sources_that_became_shorter(virtual: Path) -> None:
    with h5py.File(virtual.parent / "part1.h5", "w") as file:
        file["d"] = np.ones(3)
    refused(virtual, virtual.parent, TruncatedError, r"5 elements of d in .*part1.h5.*have \(3,\)")
    layout = h5py.VirtualLayout((2,), "f8")
    layout[:] = h5py.VirtualSource("part1.h5", "d", (5,))[2:4]
    with h5py.File(virtual, "w") as file:
        file.create_virtual_dataset("a", layout)
    refused(virtual, virtual.parent, TruncatedError, r"at least \(4,\) of d in .*have \(3,\)")


def test_sources_in_the_same_file_and_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    layout = h5py.VirtualLayout((6,), "i4")
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["d"] = np.arange(3, dtype="i4")
        layout[:3] = h5py.VirtualSource(file["d"])
        layout[3:] = h5py.VirtualSource("other.h5", "d", (3,))
        file.create_virtual_dataset("a", layout)
    with h5py.File(tmp_path / "far" / "other.h5", "w") as file:
        file["d"] = np.arange(3, 6, dtype="i4")
    refused(f"{tmp_path}/v.h5::a", tmp_path, NotFoundError, "other.h5, which is missing")
    # HDF5 searches the directory that its environment names at load, and the current directory.
    monkeypatch.chdir(tmp_path / "far")
    assert copied(f"{tmp_path}/v.h5::a", tmp_path).tolist() == list(range(6))


def test_virtual_datasets_of_numbered_files(tmp_path: Path) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((6,), (h5py.h5s.UNLIMITED,))
    taken = h5py.h5s.create_simple((6,), (h5py.h5s.UNLIMITED,))
    taken.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (2,), (2,))
    creation.set_virtual(taken, b"part%b.h5", b"d", h5py.h5s.create_simple((2,)))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_DOUBLE, space, creation)
    for i in range(3):
        with h5py.File(tmp_path / f"part{i}.h5", "w") as file:
            file["d"] = np.full(2, float(i))
    assert copied(tmp_path / "v.h5", tmp_path).tolist() == [0, 0, 1, 1, 2, 2]
    # With a gap allowed, HDF5 looks beyond a missing file.
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_virtual_printf_gap(1)
    os.remove(tmp_path / "part1.h5")
    with h5py.File(tmp_path / "v.h5") as file:
        dataset = h5py.Dataset(h5py.h5d.open(file.id, b"a", access))
        assert dataset.shape == (6,)
        refused(dataset, tmp_path, NotFoundError, "part1.h5, which is missing")


def test_external_storage(tmp_path: Path) -> None:
    model = np.arange(10.0)
    files = [tmp_path / "a.raw", tmp_path / "b.raw"]
    with h5py.File(tmp_path / "e.h5", "w") as file:
        segments = [(str(files[0]), 16, 24), (str(files[1]), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("a", (10,), "f8", external=segments)
    files[0].write_bytes(bytes(16) + model[:3].tobytes())
    files[1].write_bytes(model[3:].tobytes())
    np.testing.assert_array_equal(copied(tmp_path / "e.h5", tmp_path), model)
    os.truncate(files[1], 55)
    refused(tmp_path / "e.h5", tmp_path, TruncatedError, r"need 56 bytes in .*b\.raw.*have 55")
    os.remove(files[0])
    refused(tmp_path / "e.h5", tmp_path, NotFoundError, r"a\.raw, which is missing")


def test_links(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "there.h5", "w") as file:
        file["d"] = np.arange(4.0)
    with h5py.File(tmp_path / "l.h5", "w") as file:
        file["good"] = h5py.ExternalLink("there.h5", "/d")
        file["gone"] = h5py.ExternalLink("gone.h5", "/d")
        file["soft"] = h5py.SoftLink("/nowhere")
        file["round"] = h5py.SoftLink("/round")
        file["g/below"] = h5py.ExternalLink("there.h5", "/e")
    path = f"{tmp_path}/l.h5::"
    assert copied(f"{path}good", tmp_path).tolist() == [0, 1, 2, 3]
    for name, target in [
        ("gone", r"/d in gone\.h5"),
        ("gone/x", r"/d in gone\.h5"),
        ("soft", "/nowhere"),
        ("round", "/round"),
        ("g/below", r"/e in there\.h5"),
    ]:
        refused(f"{path}{name}", tmp_path, NotFoundError, f"is a link to {target}, which is miss")
    refused(tmp_path / "l.h5", tmp_path, InvalidError, "it has g/below, gone, good, round, soft")


def test_a_copy_through_a_link_notices_that_its_source_changed(tmp_path: Path) -> None:
    """The file with the link does not change, so a stopped copy of such a dataset restarts."""
    with h5py.File(tmp_path / "there.h5", "w") as file:
        file["d"] = np.ones(40)
        file["d"][30] = 1e300
    with h5py.File(tmp_path / "l.h5", "w") as file:
        file["a"] = h5py.ExternalLink("there.h5", "/d")
    options: dict[str, Any] = {"dtype": "f4", "chunks": 8, "progress": False}
    with pytest.raises(InvalidError, match="can hold"):
        oc.from_array(tmp_path / "l.h5", tmp_path / "A", **options)
    with h5py.File(tmp_path / "there.h5", "r+") as file:
        file["d"][...] = 2
    with oc.from_array(tmp_path / "l.h5", tmp_path / "A", **options) as array:
        assert array[...].tolist() == [2.0] * 40


@pytest.mark.parametrize("name", ["m.mat", "m"])
@pytest.mark.parametrize("block", [512, 4096])
def test_hdf5_behind_a_user_block(tmp_path: Path, name: str, block: int) -> None:
    with h5py.File(tmp_path / name, "w", userblock_size=block) as file:
        file["A"] = np.eye(3)
    with (tmp_path / name).open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")
    np.testing.assert_array_equal(copied(tmp_path / name, tmp_path), np.eye(3))


@pytest.mark.parametrize("names", [("real", "imag"), ("r", "i")])
@pytest.mark.parametrize("real", ["<f8", ">f8", "<f4"])
def test_complex_numbers_of_pairs(tmp_path: Path, names: tuple[str, str], real: str) -> None:
    model = np.arange(12).reshape(4, 3) * (1 - 2j)
    pairs = np.zeros((4, 3), [(name, real) for name in names])
    pairs[names[0]], pairs[names[1]] = model.real, model.imag
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("Z", data=pairs, chunks=(2, 2))
        np.testing.assert_array_equal(copied(file["Z"], tmp_path), model)
    found = copied(tmp_path / "c.h5", tmp_path)
    np.testing.assert_array_equal(found, model)
    assert found.dtype == ("c8" if real == "<f4" else "c16")


@pytest.mark.parametrize(
    "dtype",
    [
        [("imag", "f8"), ("real", "f8")],
        [("real", "f8"), ("imag", "f4")],
        [("real", "i8"), ("imag", "i8")],
        [("x", "f8"), ("y", "f8")],
    ],
)
def test_other_records_are_no_complex_numbers(tmp_path: Path, dtype: Any) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["Z"] = np.zeros(3, dtype)
    refused(tmp_path / "c.h5", tmp_path, InvalidError, "need a number type")


def test_what_holds_several_arrays_is_no_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "g.h5", "w") as file:
        file["g/Z"] = np.zeros(3)
        dataset = file["g/Z"]
        refused(file, tmp_path, InvalidError, "have File, .*pass one of them: g/Z")
        refused(file["g"], tmp_path, InvalidError, "have Group, .*pass one of them: Z")
    refused(file, tmp_path, ClosedError, "closed; open it again")
    refused(dataset, tmp_path, ClosedError, "closed; open it again")
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("u", shape=(3,), dtype="f8")
    refused(group, tmp_path, InvalidError, "have Group, .*pass one of them: u")
    np.savez(tmp_path / "n.npz", b=np.ones(2), a=np.ones(3))
    refused(np.load(tmp_path / "n.npz"), tmp_path, InvalidError, "pass one of them: a, b")
    refused({"p": [1.0]}, tmp_path, InvalidError, "have dict, .*pass one of them: p")


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "dia_matrix"])
def test_sparse_matrices(tmp_path: Path, kind: str) -> None:
    sparse = getattr(scipy.sparse, kind)(np.eye(3))
    refused(sparse, tmp_path, InvalidError, rf"sparse one, {kind}; pass \.toarray\(\)")
    with pytest.raises(InvalidError, match="sparse one"):
        oc.from_array(iter([sparse]), tmp_path / "none", shape=(3, 3))
    with (
        oc.create_array(tmp_path / "A", (3, 3)) as array,
        pytest.raises(InvalidError, match="sparse one"),
    ):
        array[...] = sparse


NO_FILTER = 32767
"""A filter that nobody registers."""


def filtered(path: Path, *, skipped: bool) -> Path:
    """Write a dataset of one chunk with a filter that HDF5 lacks; the chunk may skip the filter."""
    values = np.arange(6.0)
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((6,))
    made.set_filter(NO_FILTER, h5py.h5z.FLAG_OPTIONAL, (3,))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((6,))
        dataset = h5py.h5d.create(file.id, b"d", h5py.h5t.NATIVE_DOUBLE, space, made)
        dataset.write_direct_chunk((0,), values.tobytes(), int(skipped))
    return path


def test_missing_filters_are_named(tmp_path: Path) -> None:
    source = filtered(tmp_path / "a.h5", skipped=False)
    layout = h5py.VirtualLayout((6,), "f8")
    layout[:] = h5py.VirtualSource("a.h5", "d", (6,))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("d", layout)
    message = rf"need the filter {NO_FILTER} .*pip install hdf5plugin"
    for path in (source, tmp_path / "v.h5"):
        with pytest.raises(MissingPackageError, match=message):
            oc.from_array(path, tmp_path / f"{path.stem}.none", progress=False)


def test_a_missing_filter_that_no_chunk_used(tmp_path: Path) -> None:
    source = filtered(tmp_path / "a.h5", skipped=True)
    assert (copied(source, tmp_path) == np.arange(6.0)).all()


def test_installed_filters_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"plugins_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path(__file__).rename('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("outcore.convert.hdf5_source._PLUGINS", name)
    copied(filtered(tmp_path / "a.h5", skipped=True), tmp_path)
    assert (tmp_path / "loaded").exists()
