"""Codecs of exported Zarr arrays with the user's settings, against zarr-python."""

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs

import outcore as oc
from outcore.errors import InvalidError

DATA = np.arange(60 * 50.0).reshape(60, 50) % 7


@pytest.mark.parametrize(
    "codec",
    [
        zarr.codecs.ZstdCodec(level=9),
        {"name": "zstd", "configuration": {"level": 9, "checksum": True}},
        zarr.codecs.BloscCodec(cname="lz4", clevel=3, shuffle="bitshuffle"),
        zarr.codecs.GzipCodec(level=1),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_codecs_of_version_3(codec: Any, order: str, tmp_path: Path) -> None:
    path = tmp_path / "A.zarr"
    report = oc.rechunk(
        DATA, path, format="zarr", codec=codec, chunks=(20, 25), order=order, progress=False
    )
    found = zarr.open_array(path)
    np.testing.assert_array_equal(found[...], DATA)
    (compressor,) = found.compressors
    wanted = codec if isinstance(codec, dict) else codec.to_dict()
    # The metadata also have the settings that the user leaves open.
    have = compressor.to_dict()
    assert have["name"] == wanted["name"] == report.codec
    given = {k: v for k, v in wanted["configuration"].items() if k != "typesize"}
    assert {k: have["configuration"][k] for k in given} == given


@pytest.mark.parametrize("codec", [numcodecs.Zstd(level=9), {"id": "lz4", "acceleration": 2}])
def test_codecs_of_version_2(codec: Any, tmp_path: Path) -> None:
    path = tmp_path / "A.zarr"
    oc.export_array(DATA, path, codec=codec, chunks=(20, 25), zarr_format=2, progress=False)
    found = zarr.open_array(path)
    np.testing.assert_array_equal(found[...], DATA)
    (compressor,) = found.compressors
    assert compressor == numcodecs.get_codec(
        codec if isinstance(codec, dict) else codec.get_config()
    )


@pytest.mark.parametrize(
    ("codec", "version"),
    [
        (5, 3),
        ({"name": "no such"}, 3),
        ({"configuration": {}}, 3),
        ({"name": "zstd", "configuration": {"level": "x"}}, 3),
        (zarr.codecs.BytesCodec(), 3),
        (numcodecs.Zstd(), 3),
        (zarr.codecs.ZstdCodec(), 2),
        ({"id": "no such"}, 2),
        ({"id": "zstd", "level": "x"}, 2),
    ],
)
def test_other_codecs_are_refused(codec: Any, version: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=f"in version {version} such as"):
        oc.export_array(DATA, tmp_path / "A.zarr", codec=codec, zarr_format=version)
    assert list(tmp_path.iterdir()) == []


def test_files_have_no_codecs_of_zarr(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="hdf5 has the codecs none, gzip"):
        oc.export_array(DATA, tmp_path / "A.h5", codec=zarr.codecs.ZstdCodec())
    with pytest.raises(InvalidError, match="arrays of outcore are not compressed"):
        oc.rechunk(DATA, tmp_path / "A", codec={"name": "zstd"})
