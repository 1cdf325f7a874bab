"""Damaged or unusual files of other formats as sources: a clear refusal, and no wrong element."""

import gzip
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tifffile
import zarr
from strategies import values

import outcore as oc
from outcore.convert.open_source import open_source
from outcore.errors import CorruptError, InvalidError


def refuse(source: Any, path: Path, match: str, kind: type[Exception] = InvalidError) -> None:
    with pytest.raises(kind, match=match):
        oc.from_array(source, path / "copy", progress=False)


def tiff(path: Path, **options: Any) -> Path:
    tifffile.imwrite(path / "a.tif", values((64, 50), "u2"), metadata=None, **options)
    return path / "a.tif"


def tag(path: Path, code: int, value: Any) -> None:
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages.first.tags[code].overwrite(value)


@pytest.mark.parametrize(
    "options", [{"tile": (16, 16)}, {"rowsperstrip": 4, "compression": "zlib"}]
)
def test_a_tiff_without_its_offsets(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tiff(tmp_path, **options)
    with tifffile.TiffFile(path) as file:
        offsets = file.pages.first.tags[324 if "tile" in options else 273]
        end = offsets.valueoffset
    with path.open("r+b") as changed:
        changed.truncate(end)
    refuse(path, tmp_path, r"a\.tif cannot be read as TIFF: .*offset")


@pytest.mark.parametrize(("form", "kind"), [(5, "f2"), (6, "f4")])
def test_a_tiff_of_an_unknown_type(tmp_path: Path, form: int, kind: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values((20, 30), kind), metadata=None)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        tags = file.pages.first.tags
        where = tags[339].offset + 8 if 339 in tags else None
    assert where is not None
    with (tmp_path / "a.tif").open("r+b") as changed:
        changed.seek(where)
        changed.write(struct.pack("<H", form))
    refuse(tmp_path / "a.tif", tmp_path, r"a\.tif cannot be read as TIFF")


def test_a_tiff_whose_tiles_have_more_dimensions(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values((35,), "u2"), tile=(16, 16))
    refuse(tmp_path / "a.tif", tmp_path, r"a\.tif cannot be read as TIFF: shape")


def test_a_tiff_of_several_files_has_no_version(tmp_path: Path) -> None:
    """A copy could not notice that one of the other files changed."""
    plane = "".join(
        f'<TiffData FirstT="{t}" IFD="0" PlaneCount="1">'
        f'<UUID FileName="{name}">urn:uuid:0000000{t}-0000-0000-0000-000000000000</UUID></TiffData>'
        for t, name in enumerate(("a.ome.tif", "b.ome.tif"))
    )
    models = [values((20, 30), "u2") + t for t in range(2)]
    for t, name in enumerate(("a.ome.tif", "b.ome.tif")):
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="urn:uuid:0000000{t}-0000-0000-0000-000000000000"><Image ID="Image:0">'
            '<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="30" SizeY="20" '
            f'SizeZ="1" SizeC="1" SizeT="2">{plane}</Pixels></Image></OME>'
        )
        tifffile.imwrite(tmp_path / name, models[t], description=text, metadata=None)
    with open_source(tmp_path / "a.ome.tif") as source:
        assert source.shape == (2, 20, 30)
        assert source.version() is None
    with oc.from_array(tmp_path / "a.ome.tif", tmp_path / "A", progress=False) as A:
        np.testing.assert_array_equal(A[...], models)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_header_of_an_unknown_type(tmp_path: Path, suffix: str) -> None:
    nibabel.Nifti1Image(values((5, 6, 7), "f4"), np.eye(4)).to_filename(tmp_path / "a.nii")
    data = bytearray((tmp_path / "a.nii").read_bytes())
    data[70:72] = b"\x99\x99"
    path = tmp_path / f"b{suffix}"
    path.write_bytes(gzip.compress(data) if suffix == ".nii.gz" else data)
    refuse(path, tmp_path, r"b\.nii.* cannot be read as NIfTI: data code")


def test_the_checksum_of_a_compressed_image(tmp_path: Path) -> None:
    """A flipped bit may decompress, to other elements."""
    nibabel.Nifti1Image(values((5, 6, 7), "f4"), np.eye(4)).to_filename(tmp_path / "a.nii")
    data = bytearray(gzip.compress((tmp_path / "a.nii").read_bytes(), compresslevel=0))
    data[-100] ^= 1
    (tmp_path / "b.nii.gz").write_bytes(data)
    refuse(tmp_path / "b.nii.gz", tmp_path, r"cannot decode .*b\.nii\.gz: CRC", CorruptError)


def test_the_checksum_of_a_page_of_parquet(tmp_path: Path) -> None:
    path, column = tmp_path / "a.parquet", np.arange(1000.0)
    pyarrow.parquet.write_table(
        pyarrow.table({"a": column}), path, compression="none", use_dictionary=False,
        write_page_checksum=True,
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<d", 500.0))] ^= 1
    path.write_bytes(data)
    refuse(path, tmp_path, r"cannot decode .*a\.parquet", CorruptError)


@pytest.mark.parametrize(("nbytes", "bits"), [(3, 24), (16, 128)])
def test_integers_of_hdf5_that_numpy_lacks(tmp_path: Path, nbytes: int, bits: int) -> None:
    kind = h5py.h5t.STD_I64LE.copy()
    if nbytes < 8:
        kind.set_precision(bits)
    kind.set_size(nbytes)
    if nbytes > 8:
        kind.set_precision(bits)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))
    refuse(tmp_path / "a.h5", tmp_path, rf"/x in .*a\.h5, have .*{nbytes}")
    with h5py.File(tmp_path / "a.h5") as file:
        refuse(file["x"], tmp_path, rf"/x in .*a\.h5, have .*{nbytes}")


def test_an_empty_array_of_matlab(tmp_path: Path) -> None:
    """MATLAB stores the shape in place of elements."""
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=512) as file:
        file["x"] = np.array([0, 3], "u8")
        file["x"].attrs["MATLAB_empty"] = np.uint8(1)
        file["y"] = np.array([0, 3], "u8")
        file["y"].attrs["MATLAB_empty"] = np.uint8(0)
    refuse(f"{tmp_path}/a.mat::x", tmp_path, r"empty array of MATLAB of shape \(3, 0\)")
    with oc.from_array(f"{tmp_path}/a.mat::y", tmp_path / "A", progress=False) as A:
        assert A[...].tolist() == [0, 3]


def zarr_2(path: Path, **changes: Any) -> Path:
    zarr.create_array(path / "z", shape=(6, 8), chunks=(3, 4), dtype="i1", zarr_format=2)
    document = json.loads((path / "z/.zarray").read_text()) | changes
    (path / "z/.zarray").write_text(json.dumps(document))
    return path / "z"


def zarr_3(path: Path, **changes: Any) -> Path:
    zarr.create_array(path / "z", shape=(6, 8), chunks=(3, 4), dtype="i1", fill_value=7)
    document = json.loads((path / "z/zarr.json").read_text()) | changes
    (path / "z/zarr.json").write_text(json.dumps(document))
    return path / "z"


@pytest.mark.parametrize("make", [zarr_2, zarr_3])
@pytest.mark.parametrize("value", [200, 2**70, "x", [1]])
def test_a_fill_value_beyond_its_type(
    tmp_path: Path, make: Callable[..., Path], value: Any
) -> None:
    refuse(make(tmp_path, fill_value=value), tmp_path, r"z cannot be read as Zarr: ")


def test_zarr_without_a_fill_value(tmp_path: Path) -> None:
    path = zarr_3(tmp_path)
    document = json.loads((path / "zarr.json").read_text())
    del document["fill_value"]
    (path / "zarr.json").write_text(json.dumps(document))
    refuse(path, tmp_path, "z cannot be read as Zarr: it has no 'fill_value'")


def test_zarr_of_impossible_chunks(tmp_path: Path) -> None:
    # zarr-python refuses them from version 3.4 on.
    match = r"need chunks .* have \(0, 4\)|chunk shape \[0, 4\] is invalid"
    refuse(zarr_2(tmp_path, chunks=[0, 4]), tmp_path, match)


def test_zarr_attributes_that_are_a_list(tmp_path: Path) -> None:
    path = zarr_2(tmp_path)
    (path / ".zattrs").write_text("[1]")
    refuse(path, tmp_path, r"z cannot be read as Zarr: ")


@pytest.mark.parametrize("attributes", [None, {"outcore": 5}, {"outcore": {}}, {"outcore": "x"}])
def test_other_software_may_have_an_attribute_of_our_name(tmp_path: Path, attributes: Any) -> None:
    path = zarr_3(tmp_path, attributes=attributes)
    with oc.from_array(path, tmp_path / "A", progress=False) as A:
        assert (A[...] == 7).all()


@pytest.mark.parametrize("version", [2, 3])
def test_a_group_is_listed_as_it_is(tmp_path: Path, version: Any) -> None:
    """Consolidated metadata may be older than the group."""
    zarr.create_group(tmp_path / "g", zarr_format=version).create_array("x", shape=2, dtype="i4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 3 does not specify consolidated metadata
        zarr.consolidate_metadata(tmp_path / "g")
    zarr.create_array(tmp_path / "g/y", shape=2, dtype="i4", zarr_format=version)
    refuse(tmp_path / "g", tmp_path, r"one of its arrays: x, y$")


@pytest.mark.parametrize(
    "change",
    [
        {"endian": "big"},
        {"key": {"name": "v2", "configuration": {"separator": "."}}},
        {"key": {"name": "default", "configuration": {"separator": "."}}},
    ],
)
def test_an_array_of_other_bytes_with_our_attributes(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Its shard has the same length and index as one of outcore's."""
    model = values((1024,), "f8")
    oc.create_array(tmp_path / "A", 1024, chunks=512).close()
    attributes = json.loads((tmp_path / "A/zarr.json").read_text())["attributes"]
    other = zarr.create_array(
        tmp_path / "B", shape=(1024,), chunks=(512,), shards=(1024,), dtype="f8",
        attributes=attributes, compressors=None,
        serializer=zarr.codecs.BytesCodec(endian=change.get("endian", "little")),
        chunk_key_encoding=change.get("key"), fill_value=0,
    )  # fmt: skip
    other[...] = model
    with pytest.raises(InvalidError, match="no array of outcore's own layout"):
        oc.open_array(tmp_path / "B")
    with oc.from_array(tmp_path / "B", tmp_path / "C", progress=False) as found:
        np.testing.assert_array_equal(found[...], model)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_negative_zeros_in_zarr(tmp_path: Path, dtype: str, version: Any) -> None:
    model = np.zeros((24, 8), dtype)
    model[8:16] = -0.0 if model.dtype.kind == "f" else complex(-0.0, -0.0)
    if model.dtype.kind == "c":
        model[16:] = complex(0.0, -0.0)
    oc.export_array(model, tmp_path / "z.zarr", chunks=(8, 8), zarr_format=version, progress=False)
    assert zarr.open_array(tmp_path / "z.zarr", mode="r")[...].tobytes() == model.tobytes()


def test_zero_bytes_in_names_for_hdf5(tmp_path: Path) -> None:
    """HDF5 would cut a name there, and so change another attribute of the shorter name."""
    with (
        oc.create_array(
            tmp_path / "A", (2, 3), dims=("x\0y", "z"), attributes={"a": 1, "a\0b": 2}
        ) as A,
        pytest.warns(oc.errors.LeftOutWarning, match="DIMENSION_LABELS, a.?.?.?.?b"),
    ):
        oc.export_array(A, tmp_path / "a.h5", progress=False)
    with h5py.File(tmp_path / "a.h5") as file:
        assert dict(file["data"].attrs) == {"a": 1}
    for name in (f"{tmp_path}/b.h5::x\0y", f"{tmp_path}/a\0b.npy"):
        with pytest.raises(InvalidError, match="zero bytes"):
            oc.export_array(np.ones(3), name, progress=False)
    assert not (tmp_path / "b.h5").exists()
