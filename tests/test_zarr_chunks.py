"""Chunks of Zarr in directories, which threads read and write, against zarr-python."""

import tempfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import values

import outcore as oc
from outcore.convert import sources
from outcore.convert.formats.zarr_chunks import ZarrChunks
from outcore.errors import CorruptError

codecs = zarr.codecs
SHAPE = (23, 40, 5)


def keys(separator: str) -> dict[str, Any]:
    return {"chunk_key_encoding": {"name": "default", "separator": separator}}


COMMON: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"compressors": None, "dtype": "c8"},
    "gzip": {"compressors": codecs.GzipCodec(level=3), **keys(".")},
    "blosc": {"compressors": codecs.BloscCodec(cname="lz4", shuffle="bitshuffle"), "dtype": "i2"},
    "big-endian": {"serializer": codecs.BytesCodec(endian="big")},
    "columns": {"filters": codecs.TransposeCodec(order=(2, 1, 0))},
    "as version 2": {"chunk_key_encoding": {"name": "v2", "separator": "."}, "dtype": "bool"},
    "version 2": {"zarr_format": 2},
    "blosc 2": {"zarr_format": 2, "compressors": numcodecs.Blosc(), "dtype": ">f4"},
    "columns 2": {
        "zarr_format": 2, "order": "F", "compressors": numcodecs.Zlib(),
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "plain 2": {"zarr_format": 2, "compressors": None, "chunks": (50, 60, 1)},
}  # fmt: skip

UNCOMMON: dict[str, dict[str, Any]] = {
    "shards": {"shards": (8, 16, 6)},
    "other order": {"filters": codecs.TransposeCodec(order=(1, 0, 2))},
    "two codecs": {"compressors": [codecs.GzipCodec(), codecs.Crc32cCodec()]},
    "filters": {"zarr_format": 2, "filters": [numcodecs.Delta("i8")], "dtype": "i8"},
}


def put(path: Path, options: dict[str, Any]) -> Any:
    """Write an array by zarr-python; a chunk of it is missing."""
    given: dict[str, Any] = {"dtype": "f8", "chunks": (4, 8, 3), "fill_value": 1} | options
    array = zarr.create_array(path, shape=SHAPE, **given)
    model = values(SHAPE, array.dtype)
    model[:8, :16] = 1
    array[...] = model
    return model


@pytest.mark.parametrize("name", COMMON)
def test_common_chunks_are_read_from_their_files(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, missing = put(tmp_path / "Z", COMMON[name]), []
    read = sources.Sliced._read

    def watched(self: Any, box: Any, out: Any) -> None:
        missing.append(box)
        read(self, box, out)

    monkeypatch.setattr(sources.Sliced, "_read", watched)
    with oc.from_array(tmp_path / "Z", tmp_path / "A", chunks=(7, 40, 2), progress=False) as A:
        np.testing.assert_array_equal(A[...], model)
        assert A.dtype == model.dtype.newbyteorder("<")
    assert len(missing) == (0 if name == "plain 2" else 8)
    # Parts of chunks, in bounded memory.
    with oc.from_array(
        tmp_path / "Z", tmp_path / "B", chunks=(5, 9, 2), memory=150_000, progress=False
    ) as B:
        np.testing.assert_array_equal(B[...], model)


@pytest.mark.parametrize("name", UNCOMMON)
def test_zarr_python_reads_others(tmp_path: Path, name: str) -> None:
    model = put(tmp_path / "Z", UNCOMMON[name])
    assert ZarrChunks.of(tmp_path / "Z") is None
    with oc.from_array(tmp_path / "Z", tmp_path / "A", progress=False) as A:
        np.testing.assert_array_equal(A[...], model)


def test_of_is_none_for_anything_else(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"shape": 3}', '{"codecs": ["bytes"]}'):
        for name in ("zarr.json", ".zarray"):
            (tmp_path / name).write_text(text)
            assert ZarrChunks.of(tmp_path) is None
            (tmp_path / name).unlink()
    assert ZarrChunks.of(tmp_path / "nothing") is None


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc", "none"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_are_those_of_zarr_python(
    tmp_path: Path, codec: str, version: Any, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = "f4" if order == "C" else "c16"
    model = values(SHAPE, dtype)
    model[:8, :16] = 0
    model[8:16, :16] = -0.0
    options: dict[str, Any] = {"zarr_format": version, "codec": codec, "order": order}
    options |= {"chunks": (4, 8, 3), "progress": False}
    oc.export_array(model, tmp_path / "a.zarr", **options)
    with monkeypatch.context() as patch:
        patch.setattr(ZarrChunks, "of", lambda _: None)
        oc.export_array(model, tmp_path / "b.zarr", **options)
    ours, theirs = (
        {p.relative_to(tmp_path / name): content(p) for p in files_below(tmp_path / name)}
        for name in ("a.zarr", "b.zarr")
    )
    # zarr-python writes complex zeros, too, because it cannot tell them from negative ones.
    zeros = set(theirs) - set(ours)
    assert len(zeros) == (8 if version == 3 and order == "F" else 0)
    assert ours == {name: data for name, data in theirs.items() if name not in zeros}
    found = zarr.open_array(tmp_path / "a.zarr", mode="r")[...]
    np.testing.assert_array_equal(found, model)
    np.testing.assert_array_equal(np.signbit(found.real), np.signbit(model.real))


def content(path: Path) -> bytes:
    """Return the bytes of a file, without the time in those of gzip."""
    data = path.read_bytes()
    return data[8:] if data.startswith(b"\x1f\x8b") else data


def files_below(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()]


@pytest.mark.parametrize("name", ["default", "gzip", "plain", "blosc"])
@pytest.mark.parametrize("length", [-3, 0])
def test_damaged_chunks_are_refused(tmp_path: Path, name: str, length: int) -> None:
    put(tmp_path / "Z", COMMON[name])
    chunk = max(path for path in files_below(tmp_path / "Z") if path.name[-1].isdigit())
    chunk.write_bytes(chunk.read_bytes()[:length])
    with pytest.raises(CorruptError, match=r"cannot decode .*Z"):
        oc.from_array(tmp_path / "Z", tmp_path / "A", progress=False)


def test_conversions_name_the_element(tmp_path: Path) -> None:
    model = np.zeros((20, 20))
    model[13, 17] = 1e300
    zarr.create_array(tmp_path / "Z", data=model, chunks=(4, 6))
    with pytest.raises(oc.errors.InvalidError, match=r"at \(13, 17\)"):
        oc.from_array(tmp_path / "Z", tmp_path / "A", dtype="f4", progress=False)


@st.composite
def layouts(draw: Any) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    """Draw a shape, and the layouts of a source and a target."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 5, 8, 13, 24]), min_size=1, max_size=3)))
    both = [
        {
            "zarr_format": draw(st.sampled_from([2, 3])),
            "chunks": tuple(draw(st.integers(1, n + 3)) for n in shape),
            "order": draw(st.sampled_from("CF")),
            "codec": draw(st.sampled_from(["zstd", "none"])),
        }
        for _ in range(2)
    ]
    return shape, both


@examples(30)
@given(layouts(), st.sampled_from(["i1", "f8"]), st.sampled_from([300_000, 4_000_000]))
def test_any_layouts(case: Any, dtype: str, memory: int) -> None:
    shape, (before, after) = case
    model = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    with tempfile.TemporaryDirectory() as home:
        zarr.create_array(
            f"{home}/a.zarr", data=model, chunks=before["chunks"],
            zarr_format=before["zarr_format"],
            compressors="auto" if before["codec"] == "zstd" else None,
            order=before["order"] if before["zarr_format"] == 2 else None,
        )  # fmt: skip
        oc.export_array(f"{home}/a.zarr", f"{home}/b.zarr", memory=memory, progress=False, **after)
        np.testing.assert_array_equal(zarr.open_array(f"{home}/b.zarr", mode="r")[...], model)
