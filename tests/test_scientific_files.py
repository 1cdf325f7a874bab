"""TIFF, NIfTI and Parquet files as sources, against the libraries that write them."""

import gzip
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tifffile
import zarr
from command_line import outcore
from source_cases import copied
from strategies import values

import outcore as oc
from outcore.errors import CorruptError, InvalidError, LeftOutWarning, MissingPackageError


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((40, 33), "u2", {}),
        ((5, 40, 33), "f4", {"byteorder": ">", "bigtiff": True}),
        ((5, 40, 33), "u1", {"compression": "zlib", "rowsperstrip": 7}),
        ((70, 90), "i4", {"compression": "zlib", "tile": (32, 48), "predictor": True}),
        ((40, 33, 3), "u1", {"photometric": "rgb", "compression": "zlib"}),
        ((3, 4, 40, 33), "c8", {}),
    ],
)
def test_images_and_stacks_of_tiff(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, options: dict[str, Any]
) -> None:
    model = values(shape, dtype)
    tifffile.imwrite(tmp_path / "a.tif", model, **{"photometric": "minisblack"} | options)
    (tmp_path / "unnamed").write_bytes((tmp_path / "a.tif").read_bytes())
    for name in ("a.tif", "unnamed"):
        found, report = copied(tmp_path / name, tmp_path / "A", memory="1 MiB")
        assert (found.dtype, report.times_read) == (model.dtype, 1)
        np.testing.assert_array_equal(found, model)


def test_axes_of_tiff_name_dimensions(tmp_path: Path) -> None:
    model = values((3, 20, 10), "u2")
    for options in ({}, {"compression": "zlib"}):
        path, metadata = tmp_path / "a.ome.tif", {"axes": "ZYX"}
        tifffile.imwrite(path, model, ome=True, metadata=metadata, **options)
        with oc.from_array(path, tmp_path / "A", if_exists="overwrite", progress=False) as A:
            assert A.dims == ("Z", "Y", "X")


def test_files_of_several_images_are_refused_with_a_way(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for n in (20, 30):
            file.write(np.full((n, 10), n, "u1"), photometric="minisblack", compression="zlib")
    with pytest.raises(InvalidError, match=r"have 2, of shapes \(20, 10\), \(30, 10\); pass zarr"):
        oc.from_array(tmp_path / "a.tif", tmp_path / "A")
    with tifffile.imread(tmp_path / "a.tif", series=1, aszarr=True) as store:
        found, _ = copied(zarr.open_array(store, mode="r"), tmp_path / "A")
    np.testing.assert_array_equal(found, np.full((30, 10), 30, "u1"))


def test_a_codec_of_tiff_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.ones((4, 4)), compression="zlib")
    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", {})
    with pytest.raises(MissingPackageError, match="ADOBE_DEFLATE, needs the package imagecodecs"):
        oc.from_array(tmp_path / "a.tif", tmp_path / "A")


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(("dtype", "scale"), [("i2", None), ("i2", (0.25, -3.0)), ("f4", None)])
def test_images_of_nifti(
    tmp_path: Path, suffix: str, dtype: str, scale: tuple[float, float] | None
) -> None:
    affine = np.diag([2.0, 2.0, 3.5, 1.0])
    image = nibabel.Nifti1Image(values((31, 20, 17, 2), dtype), affine)
    path = tmp_path / f"a{suffix}"
    if scale is not None:
        image.header.set_slope_inter(*scale)
    image.to_filename(path)
    expected = np.asanyarray(nibabel.load(path).dataobj)
    found, report = copied(path, tmp_path / "A", memory="1 MiB", chunks=(16, 16, 8, 2))
    assert (found.dtype, report.times_read, report.order) == (expected.dtype, 1, "F")
    np.testing.assert_array_equal(found, expected)
    assert oc.open_array(tmp_path / "A").attrs == {"affine": affine.tolist()}


def test_a_compressed_image_is_decompressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = values((64, 64, 40), "f8")
    nibabel.Nifti1Image(model, np.eye(4)).to_filename(tmp_path / "a.nii.gz")
    rewinds = []
    rewind = gzip._GzipReader._rewind  # type: ignore[attr-defined]
    monkeypatch.setattr(
        gzip._GzipReader, "_rewind",  # type: ignore[attr-defined]
        lambda self: (rewinds.append(1), rewind(self)),
    )  # fmt: skip
    found, report = copied(tmp_path / "a.nii.gz", tmp_path / "A", memory="1 MiB")
    np.testing.assert_array_equal(found, model)
    assert report.blocks > 4
    # One rewind for the first element, which gives the type, and one for the first block.
    assert len(rewinds) <= 2


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_damaged_image_of_nifti(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    nibabel.Nifti1Image(values((30, 30, 30), "f4"), np.eye(4)).to_filename(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises((CorruptError, oc.errors.TruncatedError, InvalidError), match=r"a\.nii"):
        oc.from_array(path, tmp_path / "A", progress=False)


def table(**columns: Any) -> pyarrow.Table:
    return pyarrow.table(columns)


@pytest.mark.parametrize("group", [1000, 64, 7])
@pytest.mark.parametrize("kinds", [("f8", "f8", "f8"), ("i2", "u1", "i2"), ("f4", "i4", "bool")])
def test_tables_of_parquet(tmp_path: Path, kinds: tuple[str, ...], group: int) -> None:
    columns = {name: values((500,), kind) for name, kind in zip("abc", kinds, strict=True)}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table(**columns), path, row_group_size=group)
    expected = pyarrow.parquet.read_table(path).to_pandas().to_numpy("f8")
    for memory, chunks in [("1 MiB", None), ("100 KiB", (50, 2))]:
        found, report = copied(path, tmp_path / "A", memory=memory, chunks=chunks)
        assert found.dtype == np.result_type(*kinds)
        np.testing.assert_array_equal(found.astype("f8"), expected)
        assert report.times_read == 1
    assert oc.open_array(tmp_path / "A").attrs == {"columns": ["a", "b", "c"]}


def test_other_columns_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.pq"
    text = ["x", "y", "z"]
    pyarrow.parquet.write_table(table(name=text, a=[1, 2, 3], when=text, b=[0.5, 1.5, 2.5]), path)
    with pytest.warns(LeftOutWarning, match="columns that hold no numbers: name, when"):
        A = oc.from_array(path, tmp_path / "A", progress=False)
    np.testing.assert_array_equal(A[...], [[1, 0.5], [2, 1.5], [3, 2.5]])
    assert A.attrs == {"columns": ["a", "b"]}
    pyarrow.parquet.write_table(table(name=text), path)
    with pytest.raises(InvalidError, match=r"have name \(string\); write such a table"):
        oc.from_array(path, tmp_path / "B")


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("columns", "at"),
    [
        ({"a": pyarrow.array([0.5, 1, 2]), "b": pyarrow.array([1, 2, BIG])}, "b"),
        ({"a": pyarrow.array([1, 2, -BIG]), "b": pyarrow.array([0.5, 1, 2], "float32")}, "a"),
        ({"a": pyarrow.array([-1, 1, 2]), "b": pyarrow.array([1, 2, 2**64 - 1], "uint64")}, "b"),
        ({"a": pyarrow.array([1, 2, 2**63 - 1]), "b": pyarrow.array([1, 2, 3], "uint64")}, "a"),
        ({"a": pyarrow.array([1, 2, 3]), "b": pyarrow.array([1, 2, BIG], "uint64")}, "b"),
    ],
)
def test_integers_of_parquet_are_not_rounded(
    tmp_path: Path, columns: dict[str, Any], at: str
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table(**columns), path, row_group_size=2)
    [number] = [int(x) for x in columns[at].to_pylist()[2:]]
    place = f"have {number} at (2, {'ab'.index(at)})"
    with pytest.raises(InvalidError) as told:
        oc.from_array(path, tmp_path / "A", progress=False)
    assert f"column {at} of {path}: need integers that float64 can hold exactly" in str(told.value)
    assert f"{place}; pass dtype=" in str(told.value)
    exact = [each.to_pylist() for each in columns.values()]
    rounded = np.array(exact, "f8").T
    for options in ({"casting": "unsafe"}, {"dtype": "f8"}):
        with oc.from_array(
            path, tmp_path / "B", if_exists="overwrite", progress=False, **options
        ) as B:
            assert B.dtype == "f8"
            np.testing.assert_array_equal(B[...], rounded)


def test_each_column_of_parquet_converts_to_the_given_type(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    signed, unsigned = [-1, BIG, 3], [BIG, 2**63 - 1, 1]
    pyarrow.parquet.write_table(table(a=signed, b=pyarrow.array(unsigned, "uint64")), path)
    with oc.from_array(path, tmp_path / "A", dtype="i8", progress=False) as A:
        assert A[...].tolist() == [[-1, BIG], [BIG, 2**63 - 1], [3, 1]]
    with pytest.raises(InvalidError, match=r"column a of .*: need .* uint64 .* -1 at \(0, 0\)"):
        oc.from_array(path, tmp_path / "B", dtype="u8", progress=False)
    pyarrow.parquet.write_table(table(a=[1, 2], b=[0.5, 1.5]), path)
    with pytest.raises(InvalidError, match=r"column b of .*: need elements of int64, have float64"):
        oc.from_array(path, tmp_path / "C", dtype="i8", progress=False)
    with oc.from_array(path, tmp_path / "D", dtype="i8", casting="unsafe", progress=False) as D:
        assert D[...].tolist() == [[1, 0], [2, 1]]


def test_large_integers_that_are_exact_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    exact = [2**53, -(2**63), 2**63 - 1024, BIG + 1]
    pyarrow.parquet.write_table(table(a=exact, b=[0.5, 1.0, 2.0, 3.0]), path)
    with oc.from_array(path, tmp_path / "A", progress=False) as A:
        assert [int(x) for x in A[:, 0]] == exact


def test_nulls_of_parquet_are_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(table(a=[1, 2, 3], b=[0.5, None, None]), tmp_path / "a.parquet")
    with pytest.raises(InvalidError, match=r"column b of .* have 2 nulls in 3 rows; fill them"):
        oc.from_array(tmp_path / "a.parquet", tmp_path / "A", progress=False)


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs/how-to/convert.md").read_text()
    [block] = re.findall(r"test_scientific_files.py runs this -->\n```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    np.testing.assert_array_equal(oc.open_array("S")[...], names["a"][:, :3])


def make_tiff(path: Path) -> None:
    tifffile.imwrite(path, np.arange(12, dtype="u1").reshape(3, 4), compression="zlib")


def make_nifti(path: Path) -> None:
    nibabel.Nifti1Image(np.zeros((2, 3), "f4"), np.eye(4)).to_filename(path)


def make_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(table(a=[1.0, 2.0]), path)


EACH = [
    ("tifffile", "a.tif", make_tiff),
    ("nibabel", "a.nii.gz", make_nifti),
    ("pyarrow", "a.parquet", make_parquet),
]


@pytest.mark.parametrize(("package", "name", "make"), EACH)
def test_each_package_is_named_where_it_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    name: str,
    make: Callable[[Path], None],
) -> None:
    make(tmp_path / name)
    done = outcore("convert", tmp_path / name, tmp_path / "A")
    assert done.exit_code == 0, done.output
    for module in [each for each in sys.modules if each.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"pip install '{package}>="):
        oc.from_array(tmp_path / name, tmp_path / "B")


@pytest.mark.parametrize(("package", "name", "make"), EACH)
def test_a_file_that_is_none_is_refused(
    tmp_path: Path, package: str, name: str, make: Callable[[Path], None]
) -> None:
    (tmp_path / name).write_bytes(b"no such file" * 100)
    with pytest.raises(InvalidError, match="cannot be read as"):
        oc.from_array(tmp_path / name, tmp_path / "A")
