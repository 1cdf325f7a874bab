"""Arrays with disk schemas: their contents in other Zarr readers, and their parts on servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from communicators import ThreadComm, ThreadJob
from pool_files import with_handle
from served_pools import in_memory
from test_zarr_interop import READERS, values

import outcore as oc
from outcore.errors import InvalidError
from outcore.files.copy import copy_files
from outcore.layout import disk_chunks
from outcore.layout.disk_schema import DiskSchema
from outcore.layout.distribution import distribute
from outcore.pool.fsck import fsck
from outcore.zarr_store import PoolStore

SERVERS = 3

SCHEMAS: list[dict[str, Any]] = [
    {"disk_schema": "natural", "mesh": (2, 2, 2)},
    {"disk_schema": "natural", "mesh": 4, "memory_schema": "*,block,*"},
    {"disk_schema": "traditional"},
    {"disk_schema": "block,block,*", "mesh": (2, 3)},
    {"disk_schema": "BLOCK,*,BLOCK", "mesh": (5, 2)},
    {"disk_schema": ("*", "cyclic(3)", "*")},
    {"disk_schema": "*,*,*"},
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split blocks into several chunks."""
    monkeypatch.setattr(disk_chunks, "AIM_BYTES", 4096)
    monkeypatch.setattr(disk_chunks, "TILE_BYTES", 1024)
    monkeypatch.setattr(disk_chunks, "MAX_TILE_BYTES", 16384)


@pytest.fixture
def directory() -> Iterator[Path]:
    with in_memory() as found:
        yield found


@pytest.fixture
def pool(directory: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([directory / str(number) for number in range(SERVERS)]) as found:
        yield found


@pytest.mark.parametrize("setting", SCHEMAS)
@pytest.mark.parametrize("shape", [(12, 18, 20), (13, 7, 31), (2, 1, 900)])
def test_readers_of_zarr_find_the_elements(
    directory: Path, shape: tuple[int, ...], setting: dict[str, Any]
) -> None:
    model = values(shape, "f8")
    with oc.create_array(directory / "A", shape, "f8", **setting) as array:
        array[...] = model
    for read in READERS.values():
        np.testing.assert_array_equal(read(directory / "A"), model)
    with oc.open_array(directory / "A", "r+") as again:
        again[1:2] = -model[1:2]
        again[:, :, ::7] += 1
        model[1:2] *= -1
        model[:, :, ::7] += 1
        np.testing.assert_array_equal(again[...], model)
        schema = again.info().disk_schema
        assert isinstance(schema, DiskSchema)
        assert schema.distribution.count(",") == 2
    oc.verify(directory / "A")


@pytest.mark.parametrize("setting", SCHEMAS)
def test_a_block_lies_on_one_server(pool: oc.Pool, setting: dict[str, Any]) -> None:
    shape = (13, 18, 20)
    model = values(shape, "f4")
    with oc.create_array(pool / "d/A", shape, "f4", **setting) as array:
        array[...] = model
        found, grid = array.info(), array.metadata.grid()
    np.testing.assert_array_equal(zarr.open_array(PoolStore(pool / "d/A"), mode="r"), model)
    assert found.placement is not None
    assert found.block is not None
    assert found.placement.parted_chunks == 0
    assert grid.block_bytes == found.placement.stripe_unit_bytes
    blocks = np.prod([-(-n // b) for n, b in zip(shape, found.block, strict=True)])
    assert found.disk_schema is not None
    mesh = int(np.prod(found.disk_schema.mesh))
    assert len(found.placement.servers) == min(SERVERS, blocks, mesh)


def file_of(array: oc.Array, *step: int) -> oc.PoolPath:
    """The file of an array, or of one of its steps."""
    assert isinstance(array.path, oc.PoolPath)
    inside = [*step, *[0] * (array.ndim - len(step))]
    return array.path / "c" / "/".join(map(str, inside))


def content(path: oc.PoolPath) -> bytes:
    """All bytes of a file, as the pool returns them."""
    with path.open() as file:
        return bytes(file.read())


def on_servers(directory: Path, path: oc.PoolPath) -> list[bytes]:
    """Return the data files of a file, in the order of its servers."""
    handle = path.root.core.handle(path.inside)
    servers = path.stat().servers
    return [with_handle(directory / str(server), handle).read_bytes() for server in servers]


SHAPES = [(48, 16), (50, 7), (5, 40, 3), (997,), (2, 3), (97, 11, 2), (3, 4096), (96, 64, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mesh", [None, 1, 2])
@pytest.mark.parametrize("is_atomic", [None, False, True])
def test_data_files_of_the_servers_one_after_another_are_the_flat_array(
    directory: Path,
    pool: oc.Pool,
    shape: tuple[int, ...],
    mesh: int | None,
    is_atomic: bool | None,
) -> None:
    model = values(shape, "f8")
    array = oc.create_array(pool / "A", shape, disk_schema="traditional", mesh=mesh)
    if is_atomic is None:
        array[...] = model
        array.flush()
    else:
        memory_schema = ",".join(["cyclic", *"*" * (len(shape) - 1)])

        def job(comm: ThreadComm) -> None:
            with oc.open_array(pool / "A", "r+") as opened:
                part = model[comm.rank :: 2]
                opened.write_all(part, memory_schema, comm, timeout=60, atomic=is_atomic)

        assert ThreadJob(2).run(job) == [None, None]
    path = file_of(array)
    whole = b"".join(on_servers(directory, path))
    assert whole[: model.nbytes] == model.tobytes()
    assert whole == content(path)
    found = oc.open_array(pool / "A").info().placement
    assert found is not None
    assert len(found.servers) <= (mesh or SERVERS)
    even = -(-shape[0] // (mesh or SERVERS)) * model[0].nbytes
    assert found.stripe_unit_bytes >= even


@pytest.mark.parametrize("shape", [(12, 18, 20), (13, 18, 20), (2, 1, 900)])
@pytest.mark.parametrize("setting", SCHEMAS)
def test_each_server_has_its_blocks_and_the_last_one_what_follows_them(
    directory: Path, pool: oc.Pool, setting: dict[str, Any], shape: tuple[int, ...]
) -> None:
    with oc.create_array(pool / "A", shape, "f4", **setting) as array:
        array[...] = values(shape, "f4")
        array.flush()
    found, whole = array.info(), content(file_of(array))
    assert found.placement is not None
    assert found.block is not None
    unit, count = found.placement.stripe_unit_bytes, len(found.placement.servers)
    blocks = int(np.prod([-(-n // b) for n, b in zip(shape, found.block, strict=True)]))
    cut = [whole[unit * n : unit * (n + 1)] for n in range(blocks)]
    expected = [b"".join(cut[entry::count]) for entry in range(count)]
    expected[-1] += whole[unit * blocks :]
    assert on_servers(directory, file_of(array)) == expected
    assert file_of(array).stat().round_units == blocks


def test_steps_of_an_array_that_grows_lie_so_too(directory: Path, pool: oc.Pool) -> None:
    model = values((3, 12, 32), "f8")
    with oc.create_array(
        pool / "A", (0, *model.shape[1:]), growing=True, disk_schema="traditional"
    ) as array:
        for step in model:
            array.append(step)
        array.flush()
    for number, step in enumerate(model):
        path = file_of(array, number)
        whole = b"".join(on_servers(directory, path))
        assert whole[: step.nbytes] == step.tobytes()
        assert whole == content(path)


def test_a_copy_of_an_array_lies_as_it_does(directory: Path, pool: oc.Pool) -> None:
    model = values((48, 16), "f8")
    with oc.create_array(pool / "A", model.shape, disk_schema="traditional") as array:
        array[...] = model
    copy_files(pool / "A", pool / "B", recursive=True)
    with oc.open_array(pool / "B") as copied:
        np.testing.assert_array_equal(copied[...], model)
        path = file_of(copied)
    assert b"".join(on_servers(directory, path)) == content(path)
    assert fsck(pool, patience_s=0).findings == ()


def test_on_a_plain_path_traditional_is_the_flat_array(directory: Path) -> None:
    model = values((53, 12), "f4")
    with oc.create_array(directory / "A", model.shape, "f4", disk_schema="traditional") as array:
        array[...] = model
        array.flush()
    content = (directory / "A/c/0/0").read_bytes()
    assert content[: model.nbytes] == model.tobytes()


def test_more_parts_than_servers_are_refused_for_traditional(pool: oc.Pool) -> None:
    with pytest.raises(InvalidError, match="leave mesh= out"):
        oc.create_array(pool / "A", (40, 4), disk_schema="traditional", mesh=4)
    oc.create_array(pool / "A", (40, 4), disk_schema="block,*", mesh=4)


def test_assembled_in_the_order_of_the_blocks(directory: Path) -> None:
    model = values((48, 60), "f8")
    called: list[tuple[slice, ...]] = []

    def fill(rows: slice, columns: slice) -> npt.NDArray[Any]:
        called.append((rows, columns))
        return model[rows, columns]

    array = oc.create_array(
        directory / "A", model.shape, fill=fill, memory=30_000, progress=False,
        disk_schema="block,block", mesh=(2, 2),
    )  # fmt: skip
    np.testing.assert_array_equal(array[...], model)
    boxes = list(array.chunk_boxes())
    grid = array.metadata.grid()
    at = [[s.start // c for s, c in zip(box, array.chunks, strict=True)] for box in boxes]
    offsets = [grid.locate(place)[1] for place in at]
    assert offsets == sorted(offsets)
    assert len(called) == len(offsets) > 4


@pytest.mark.parametrize("setting", SCHEMAS)
def test_each_step_of_a_growing_array_is_divided(
    directory: Path, pool: oc.Pool, setting: dict[str, Any]
) -> None:
    model = values((3, 13, 18, 20), "f4")
    for above in (directory, pool / "d"):
        with oc.create_array(above / "A", (0, 13, 18, 20), "f4", growing=True, **setting) as array:
            assert array.info().placement is None
            for step in model:
                array.append(step)
            found = array.info()
            offsets = [
                array.metadata.grid().locate(
                    [s.start // c for s, c in zip(box, array.chunks, strict=True)]
                )
                for box in array.chunk_boxes()
            ]
        assert offsets == sorted(offsets)
        assert found.block is not None
        assert found.block[0] == 1
        np.testing.assert_array_equal(oc.open_array(above / "A")[...], model)
    for read in READERS.values():
        np.testing.assert_array_equal(read(directory / "A"), model)
    # A step has the layout of an array of one step.
    alone = oc.create_array(pool / "one", model.shape[1:], "f4", **setting)
    expected = alone.info().placement
    assert expected is not None
    assert found.placement is not None
    assert found.block[1:] == alone.info().block
    assert sorted(found.placement.chunk_counts) == sorted(expected.chunk_counts)
    assert found.placement.stripe_unit_bytes == expected.stripe_unit_bytes


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("setting", SCHEMAS)
def test_collectives_keep_to_the_schema(
    pool: oc.Pool, setting: dict[str, Any], is_atomic: bool
) -> None:
    model = values((13, 18, 20), "f8")
    made = oc.create_array(pool / "A", model.shape, "f8", **setting)
    before = made.info().placement
    assert before is not None
    made.close()

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "A", "r+") as array:
            # A distribution that no file on disk has.
            array.write_all(
                model[:, comm.rank :: 2], "*,cyclic(1),*", comm, timeout=60, atomic=is_atomic
            )
            found = array.read_all(None, "block,*,*", comm, timeout=60)
            np.testing.assert_array_equal(found, model[7 * comm.rank : 7 + 7 * comm.rank])

    assert ThreadJob(2).run(job) == [None, None]
    with oc.open_array(pool / "A") as array:
        np.testing.assert_array_equal(array[...], model)
        after = array.info().placement
        assert after is not None
        assert (after.stripe_unit_bytes, sorted(after.chunk_counts)) == (
            before.stripe_unit_bytes,
            sorted(before.chunk_counts),
        )


def test_a_distribution_is_a_memory_schema(directory: Path) -> None:
    over = distribute((12, 18), "block,*", 4)
    array = oc.create_array(directory / "A", (12, 18), disk_schema="natural", memory_schema=over)
    assert array.info().block == (3, 18)
