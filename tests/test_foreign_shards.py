"""Arrays of outcore to which zarr-python or TensorStore wrote: detected, and repacked."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from command_line import outcore
from strategies import values

import outcore as oc
from outcore.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    OutcoreError,
    TruncatedError,
)
from outcore.storage.pool_file import PoolFile
from outcore.zarr_store import PoolStore

SHAPE = (20, 30)
WRITTEN = "valid Zarr that other software wrote to since; rewrite it by oc.repack"


def by_zarr(path: Path) -> None:
    zarr.open_array(path)[3, 4] = 77


def by_tensorstore(path: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    tensorstore.open(spec, open=True).result()[3, 4].write(77).result()


def made(path: Path, **options: Any) -> Any:
    model = values(SHAPE, "f8")
    with oc.create_array(path, SHAPE, chunks=(8, 16), **options) as array:
        array[...] = model
    model[3, 4] = 77
    return model


@pytest.mark.parametrize("write", [by_zarr, by_tensorstore])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("chunk_order", ["row-major", "hilbert"])
def test_they_are_told_copied_and_rewritten(
    tmp_path: Path, write: Callable[[Path], None], order: str, chunk_order: str
) -> None:
    path = tmp_path / "A"
    model = made(path, order=order, chunk_order=chunk_order, dims=("y", "x"), attributes={"a": 1})
    write(path)
    for call in (oc.open_array, oc.verify):
        with pytest.raises(InvalidError, match=WRITTEN):
            call(path)
    with oc.from_array(path, tmp_path / "B", progress=False) as copy:
        np.testing.assert_array_equal(copy[...], model)
        assert (copy.dims, copy.attrs) == (("y", "x"), {"a": 1})
    oc.export_array(path, tmp_path / "b.npy", progress=False)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), model)
    before = json.loads((path / "zarr.json").read_text())
    found = oc.repack(path, progress=False)
    assert (found.shards, found.rewritten) == (1, 1)
    with oc.open_array(path) as array:
        np.testing.assert_array_equal(array[...], model)
        info = array.info()
        assert (info.order, info.chunk_order) == (order, chunk_order)
    assert json.loads((path / "zarr.json").read_text()) == before
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], model)
    assert sorted(os.listdir(path)) == ["c", "outcore.generation", "zarr.json"]
    assert oc.repack(path, progress=False).rewritten == 0


def test_chunks_that_others_leave_out_are_zeros(tmp_path: Path) -> None:
    model = made(tmp_path / "A")
    model[:8, :16] = 0
    zarr.open_array(tmp_path / "A")[:8, :16] = 0
    oc.repack(tmp_path / "A", progress=False)
    with oc.open_array(tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], model)


def test_steps_of_an_array_that_grows(tmp_path: Path) -> None:
    model = values((4, *SHAPE), "f8")
    with oc.create_array(tmp_path / "A", (0, *SHAPE), chunks=(8, 16), growing=True) as array:
        array.append(model)
    zarr.open_array(tmp_path / "A")[[1, 3], 5, 6] = model[[1, 3], 5, 6] = 77
    mode = 0o640
    (tmp_path / "A" / "c" / "1" / "0" / "0").chmod(mode)
    with pytest.raises(InvalidError, match=WRITTEN):
        oc.open_array(tmp_path / "A")
    found = oc.repack(tmp_path / "A", progress=False)
    assert (found.shards, found.rewritten) == (4, 2)
    assert (tmp_path / "A" / "c" / "1" / "0" / "0").stat().st_mode & 0o777 == mode
    with oc.open_array(tmp_path / "A", "r+") as array:
        np.testing.assert_array_equal(array[...], model)
        array.append(model[0])
        assert len(array) == 5


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def cut_by_a_page(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096)


def flip_the_index(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


def lose_bytes_before_the_index(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:1000] + data[-100:])


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (cut, TruncatedError),
        (cut_by_a_page, TruncatedError),
        (flip_the_index, CorruptError),
        (lose_bytes_before_the_index, TruncatedError),
        (os.remove, NotFoundError),
    ],
)
@pytest.mark.parametrize("is_foreign", [False, True])
def test_damage_is_told_as_such(
    tmp_path: Path, spoil: Callable[[Path], None], kind: type[OutcoreError], is_foreign: bool
) -> None:
    path = tmp_path / "A"
    made(path)
    if is_foreign:
        by_zarr(path)
        kind = NotFoundError if kind is NotFoundError else TruncatedError
    spoil(path / "c" / "0" / "0")
    for call in (oc.open_array, oc.repack, oc.verify):
        with pytest.raises(kind):
            call(path)
    with pytest.raises(kind):
        oc.from_array(path, tmp_path / "B", progress=False)
    [entry] = json.loads(outcore("info", path, "--json").stdout)["entries"]
    assert entry["state"] == "damaged"


def test_a_damaged_shard_beside_one_that_others_wrote(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "A", (0, *SHAPE), chunks=(8, 16), growing=True) as array:
        array.append(values((3, *SHAPE), "f8"))
    zarr.open_array(tmp_path / "A")[2, 5, 6] = 77
    cut(tmp_path / "A" / "c" / "0" / "0" / "0")
    with pytest.raises(TruncatedError):
        oc.repack(tmp_path / "A", progress=False)


def test_stopped_it_leaves_valid_zarr_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = values((3, *SHAPE), "f8")
    with oc.create_array(tmp_path / "A", (0, *SHAPE), chunks=(8, 16), growing=True) as array:
        array.append(model)
    zarr.open_array(tmp_path / "A")[:, 5, 6] = model[:, 5, 6] = 77
    generation = (tmp_path / "A" / "outcore.generation").read_bytes()
    rename, renamed = os.rename, []

    def failing(old: Any, new: Any) -> None:
        if len(renamed) == 1:
            raise OSError(28, "No space left on device")
        renamed.append(new)
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(oc.OutcoreError, match="no room"):
            oc.repack(tmp_path / "A", progress=False)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "A", mode="r")[...], model)
    assert not [name for name in os.listdir(tmp_path / "A") if name.endswith(".new")]
    assert oc.repack(tmp_path / "A", progress=False).rewritten == 2
    with oc.open_array(tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], model)
    # A stopped call detects the write by the generation.
    assert (tmp_path / "A" / "outcore.generation").read_bytes() != generation


@pytest.mark.parametrize(
    "options",
    [{}, {"order": "F"}, {"growing": True}, {"disk_schema": "block,block", "mesh": (2, 1)}],
)
def test_in_a_pool_they_are_told_copied_and_rewritten(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    steps = 3 if options.get("growing") else 0
    model = values((steps, *SHAPE) if steps else SHAPE, "f8")
    with oc.Pool.embedded([tmp_path / name for name in "pqr"]) as pool:
        A = pool / "A"
        shape = (0, *SHAPE) if steps else SHAPE
        chunks = {} if "disk_schema" in options else {"chunks": (8, 16)}
        with oc.create_array(A, shape, **chunks, **options) as array:
            if steps:
                array.append(model)
            else:
                array[...] = model
            file = A / array.metadata.grid().shard_key(max(steps - 1, 0))
        pool.chmod(file, 0o640)
        before, names = pool.stat(file), pool.ls("A")
        store = PoolStore(A, hints={"stripe_unit_bytes": 128 << 10, "stripe_count": 1})
        zarr.open_array(store)[..., 3, 4] = model[..., 3, 4] = 77
        assert pool.stat(file).stripe_unit_bytes != before.stripe_unit_bytes
        with pytest.raises(InvalidError, match=WRITTEN):
            oc.open_array(A)
        with oc.from_array(A, pool / "B", progress=False) as copy:
            np.testing.assert_array_equal(copy[...], model)
        found = oc.repack(A, progress=False)
        assert (found.shards, found.rewritten) == (max(steps, 1), max(steps, 1))
        with oc.open_array(A, "r+") as array:
            np.testing.assert_array_equal(array[...], model)
            array[..., 5, 6] = model[..., 5, 6] = 78
        np.testing.assert_array_equal(zarr.open_array(PoolStore(A), mode="r")[...], model)
        after = pool.stat(file)
        for name in ("mode", "stripe_unit_bytes", "round_units", "nbytes"):
            assert getattr(after, name) == getattr(before, name), name
        assert len(after.servers) == len(before.servers)
        assert oc.repack(A, progress=False).rewritten == 0
        assert pool.ls("A") == names


def test_stopped_in_a_pool_it_leaves_valid_zarr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = values(SHAPE, "f8")
    with oc.Pool.embedded([tmp_path / "p"]) as pool:
        oc.from_array(model, pool / "A", chunks=(8, 16), progress=False).close()
        zarr.open_array(PoolStore(pool / "A"))[3, 4] = model[3, 4] = 77
        write_at, written = PoolFile.write_at, []

        def failing(file: PoolFile, offset: int, data: Any) -> None:
            if len(written) == 3:
                raise KeyboardInterrupt
            written.append(offset)
            write_at(file, offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(PoolFile, "write_at", failing)
            with pytest.raises(KeyboardInterrupt):
                oc.repack(pool / "A", progress=False)
        np.testing.assert_array_equal(zarr.open_array(PoolStore(pool / "A"), mode="r")[...], model)
        assert pool.ls("A/c/0") == ["0"]
        assert oc.repack(pool / "A", progress=False).rewritten == 1
        np.testing.assert_array_equal(oc.open_array(pool / "A")[...], model)


def test_the_command_line(tmp_path: Path) -> None:
    made(tmp_path / "A")
    by_zarr(tmp_path / "A")
    shutil.copytree(tmp_path / "A", tmp_path / "A2")
    found = outcore("info", tmp_path / "A")
    assert "state  foreign: " in found.stdout
    assert WRITTEN in found.stdout
    assert outcore("verify", tmp_path / "A").exit_code == 1
    found = outcore("repack", tmp_path / "A")
    assert f"{tmp_path}/A: 1 of 1 shard files rewritten\n" in found.stdout
    found = outcore("repack", tmp_path / "A", tmp_path / "A2", "--json")
    assert [each["rewritten"] for each in json.loads(found.stdout)["repacked"]] == [0, 1]
    assert outcore("verify", tmp_path / "A").exit_code == 0
    with pytest.raises(InvalidError):
        oc.repack(zarr.create_array(tmp_path / "z", shape=3, dtype="f8").store.root)
    assert outcore("rm", "-y", tmp_path / "A2").exit_code == 0
