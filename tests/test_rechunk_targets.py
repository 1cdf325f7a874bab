"""Where `oc.rechunk` writes: pools of several disks, the verb, and what plans refuse."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore

import outcore as oc
from outcore.errors import DiskFullError, InvalidError, NotFoundError
from outcore.machine.rates import NOMINAL


def test_from_rows_on_two_disks_to_blocks_on_four(tmp_path: Path) -> None:
    data = np.arange(24 * 20 * 6, dtype="f4").reshape(24, 20, 6)
    with (
        oc.Pool.embedded([tmp_path / f"two{n}" for n in range(2)]) as two,
        oc.Pool.embedded([tmp_path / f"four{n}" for n in range(4)]) as four,
    ):
        oc.from_array(data, two / "rows", chunks=(1, 20, 6), progress=False).close()
        options: dict[str, Any] = {"disk_schema": "block,block,*", "mesh": (2, 2)}
        plan = oc.plan("rechunk", source=two / "rows", path=four / "blocks", **options)
        plan.validate()
        with oc.rechunk(two / "rows", four / "blocks", progress=False, **options) as blocks:
            schema = blocks.info().disk_schema
            np.testing.assert_array_equal(blocks[:], data)
            assert blocks.info().block == (12, 10, 6)
        assert schema is not None
        assert schema.mesh == (2, 2, 1)
        # Each server has one of the four blocks.
        with oc.rechunk(
            four / "blocks", two / "turned", transpose=(2, 0, 1), disk_schema="*,block,*",
            progress=False,
        ) as turned:  # fmt: skip
            np.testing.assert_array_equal(turned[:], data.transpose(2, 0, 1))
        with pytest.raises(InvalidError, match="mesh= belong to a disk_schema"):
            oc.rechunk(two / "rows", four / "other", mesh=2, progress=False)


def test_the_verb(tmp_path: Path) -> None:
    data = np.arange(24 * 20 * 6, dtype="f4").reshape(24, 20, 6)
    oc.from_array(data, tmp_path / "A", chunks=(1, 20, 6), progress=False).close()
    words = ("rechunk", tmp_path / "A", tmp_path / "B", "--disk-schema", "block,block,*")
    plan = outcore(*words, "--mesh", "1,1", "--plan", "--verify", "--json")
    assert plan.exit_code == 0, plan.output
    assert not (tmp_path / "B").exists()
    result = outcore(*words, "--mesh", "1,1", "--verify", "--json")
    assert result.exit_code == 0, result.output
    found, planned = json.loads(result.stdout), json.loads(plan.stdout)
    assert planned["is_exact"]
    for figure in ("bytes_read", "reads", "bytes_written", "writes"):
        assert found[figure] == planned[figure] > 0
    with oc.open_array(tmp_path / "B") as B:
        np.testing.assert_array_equal(B[:], data)
    taken = outcore("rechunk", tmp_path / "A", tmp_path / "B", "--chunks", "24,4,6")
    assert taken.exit_code == 1
    assert "exists" in taken.stderr
    turned = ("--chunks", "4,24,6", "--transpose", "1,0,2", "--dtype", "f8", "--overwrite")
    assert outcore("rechunk", tmp_path / "A", tmp_path / "B", *turned).exit_code == 0
    with oc.open_array(tmp_path / "B") as B:
        assert (B.chunks, B.dtype) == ((4, 24, 6), np.dtype("f8"))
        np.testing.assert_array_equal(B[:], data.transpose(1, 0, 2))
    # Its suffix is a format.
    assert outcore("rechunk", tmp_path / "B", tmp_path / "C.npy", "--order", "F").exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), data.transpose(1, 0, 2))
    for bad in (("--mesh", "2"), ("--chunks", "0,1,1"), ("--memory", "1kB", "--chunks", "9,9,6")):
        assert outcore("rechunk", tmp_path / "A", tmp_path / "D", *bad).exit_code == 1
    assert not (tmp_path / "D").exists()


def test_a_plan_refuses_only_what_the_call_refuses(small_disk: Path) -> None:
    model = np.zeros((600, 10_000))
    A = oc.from_array(model, small_disk / "A", chunks=(1, 10_000), progress=False)
    options: dict[str, Any] = {"chunks": (600, 100)}
    with pytest.raises(DiskFullError):  # the disk has 64 MB, and A takes 48
        oc.plan("rechunk", source=A, path=small_disk / "B", rates=NOMINAL, **options).validate()
    compressed = oc.plan(
        "rechunk", source=A, path=small_disk / "B.zarr", rates=NOMINAL, format="zarr",
        codec="zstd", **options,
    )  # fmt: skip
    assert compressed.validate() is compressed
    with pytest.raises(NotFoundError, match="there is no directory"):
        oc.plan("rechunk", source=A, path=small_disk / "no" / "B.zarr", format="zarr")
    # A new array in the place of A has its room.
    plan = oc.plan("rechunk", source=model, path=small_disk / "A", rates=NOMINAL, **options)
    assert plan.validate("overwrite") is plan
    assert plan.validate("open") is plan
    with pytest.raises(DiskFullError):
        plan.validate()
    with pytest.raises(InvalidError, match="if_exists must be"):
        plan.validate("replace")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_another_format_is_written_beside_the_old_one(small_disk: Path, kind: str) -> None:
    model, target = np.ones((400, 10_000)), small_disk / f"A.{kind}"  # 32 of 64 MB
    options: dict[str, Any] = {"format": kind}
    if kind == "zarr":
        options |= {"chunks": (400, 1000), "codec": "none"}
    oc.rechunk(model, target, progress=False, **options)
    plan = oc.plan("rechunk", source=model, path=target, rates=NOMINAL, **options)
    for refused in (
        lambda: plan.validate("overwrite"),
        lambda: oc.rechunk(model, target, if_exists="overwrite", progress=False, **options),
    ):
        with pytest.raises(DiskFullError):
            refused()
    with pytest.raises(InvalidError, match="if_exists"):
        plan.validate("open")
    (shutil.rmtree if kind == "zarr" else os.remove)(target)
    assert plan.validate("overwrite") is plan
