"""A directory of a pool as a store of zarr-python: zarr's own tests, and cases beyond them."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import zarr
from hypothesis.stateful import run_state_machine_as_test
from served_pools import some_pool
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import outcore as oc
from outcore.errors import InvalidError, NotFoundError
from outcore.zarr_store import PoolStore

CPU = default_buffer_prototype()


@pytest.fixture(scope="module", params=["embedded", "served"])
def any_pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as opened:
        yield opened


@pytest.fixture
def pool(any_pool: oc.Pool) -> Iterator[oc.Pool]:
    yield any_pool
    for name in any_pool.ls():
        any_pool.rm(name, recursive=True)


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn a test that is a coroutine into a function."""

    @functools.wraps(test)
    def call(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return call


class TestPoolStore(StoreTests[PoolStore, cpu.Buffer]):
    store_cls = PoolStore
    buffer_cls = cpu.Buffer

    for _name, _test in vars(StoreTests).items():
        if _name.startswith("test_") and inspect.iscoroutinefunction(_test):
            locals()[_name] = run(_test)

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> PoolStore:
        return asyncio.run(PoolStore.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> PoolStore:
        return PoolStore(**store_kwargs)

    @pytest.fixture
    def store_kwargs(self, pool: oc.Pool) -> dict[str, Any]:
        pool.mkdir("store")
        return {"path": pool / "store"}

    async def set(self, store: PoolStore, key: str, value: Buffer) -> None:
        path = store.path / key
        with path.open("w") as file:
            file.write(value.to_bytes())

    async def get(self, store: PoolStore, key: str) -> Buffer:
        with (store.path / key).open() as file:
            return self.buffer_cls.from_bytes(file.read())

    def test_store_repr(self, store: PoolStore) -> None:
        assert repr(store) == f"PoolStore('{store}')"
        assert str(store).startswith("outcore://")

    def test_store_supports_writes(self, store: PoolStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: PoolStore) -> None:
        assert store.supports_listing


QUICK = hypothesis.settings(
    max_examples=8, stateful_step_count=12, deadline=None, phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck), database=None, derandomize=True,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("machine", [ZarrHierarchyStateMachine, ZarrStoreStateMachine])
def test_it_behaves_as_the_store_in_memory_does(pool: oc.Pool, machine: Any) -> None:
    store = PoolStore(pool / "store")
    run_state_machine_as_test(lambda: machine(store), settings=QUICK)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "c16", "i2"])
def test_arrays_of_outcores_open_in_zarr(pool: oc.Pool, dtype: str, order: str) -> None:
    model = (np.random.default_rng(0).normal(size=(70, 50)) * 1000).astype(dtype)
    oc.from_array(
        model, pool / "run/A", chunks=(16, 20), order=order, chunk_order="hilbert", progress=False
    ).close()
    found = zarr.open_array(PoolStore(pool / "run", read_only=True), path="A", mode="r")
    assert found.dtype == model.dtype
    assert found[...].tobytes() == model.tobytes()
    assert found[3:60:7, 11].tobytes() == model[3:60:7, 11].tobytes()
    # zarr also finds metadata that outcore derives from an array, by their names.
    assert dict(zarr.open_array(PoolStore(pool / "run/A"), mode="r").attrs) == dict(found.attrs)


@pytest.mark.parametrize("shards", [None, (32, 40)])
def test_arrays_of_zarrs_open_in_outcore(pool: oc.Pool, shards: tuple[int, int] | None) -> None:
    model = np.random.default_rng(1).normal(size=(70, 50))
    group = zarr.create_group(PoolStore(pool / "run"))
    made = group.create_array("Z", shape=model.shape, dtype="f8", chunks=(16, 20), shards=shards)
    made[...] = model
    made[5, :] = model[5, :] = 7
    made.attrs["unit"] = "m"
    for number, source in enumerate((group["Z"], pool / "run/Z", str(pool / "run/Z"))):
        with oc.from_array(source, pool / f"A{number}", progress=False) as A:
            assert A[...].tobytes() == model.tobytes()
            assert A.attrs == {"unit": "m"}
    with pytest.raises(InvalidError, match="name one of its arrays: Z"):
        oc.from_array(pool / "run", pool / "B", progress=False)
    pool.mkdir("empty")
    with pytest.raises(InvalidError, match="no Zarr array"):
        oc.from_array(pool / "empty", pool / "B", progress=False)
    with pytest.raises(NotFoundError):
        oc.from_array(pool / "nothing", pool / "B", progress=False)


def test_ranges_of_a_value_are_one_request(pool: oc.Pool) -> None:
    store = PoolStore(pool / "store", hints={"stripe_unit_bytes": 4096})
    data = np.random.default_rng(2).integers(0, 256, 100_000, np.uint8).tobytes()
    sync(store.set("a/x", CPU.buffer.from_bytes(data)))
    sync(store.set("y", CPU.buffer.from_bytes(b"short")))
    wanted = [
        ("a/x", RangeByteRequest(at, at + 50)) for at in range(0, 99_000, 1000)
    ]  # 12 regions of 4096 bytes each, on two servers
    before = pool.messages
    found = sync(store.get_partial_values(CPU, wanted))
    # One message reads the length of each of the two data files, one reads each file's ranges.
    assert pool.messages - before == 2 + 2
    for (_, each), part in zip(wanted, found, strict=True):
        assert part is not None
        assert part.to_bytes() == data[each.start : each.end]
    many = [
        ("y", SuffixByteRequest(2)), ("a/x", OffsetByteRequest(99_990)), ("y", None), ("z", None),
        ("a", None), ("y", RangeByteRequest(3, 900)), ("y", RangeByteRequest(9, 90)),
        ("y", SuffixByteRequest(0)), ("y", SuffixByteRequest(99)), ("y", RangeByteRequest(3, 1)),
    ]  # fmt: skip
    parts = [
        None if part is None else part.to_bytes()
        for part in sync(store.get_partial_values(CPU, many))
    ]
    assert parts == [b"rt", data[99_990:], b"short", None, None, b"rt", b"", b"", b"short", b""]


def test_values_are_there_whole_or_not_at_all(pool: oc.Pool) -> None:
    """Readers see one of the values that a writer replaces repeatedly, each of them whole."""
    store = PoolStore(pool / "store")
    values = [bytes([number]) * 150_000 for number in range(8)]
    sync(store.set("k", CPU.buffer.from_bytes(values[0])))

    async def write() -> None:
        for value in values * 2:
            await store.set("k", CPU.buffer.from_bytes(value))

    async def read() -> None:
        for _ in range(20):
            found = await store.get("k", CPU)
            # The writer removed the old file during this read: the store reports no value.
            assert found is None or found.to_bytes() in values
            assert [key async for key in store.list()] == ["k"]
            assert [name async for name in store.list_dir("")] == ["k"]

    async def both() -> None:
        await asyncio.gather(write(), read(), read())

    sync(both())
    assert pool.ls("store") == ["k"]


def test_one_of_several_makes_a_value(pool: oc.Pool) -> None:
    store = PoolStore(pool / "store")

    async def race(key: str) -> bytes:
        values = [CPU.buffer.from_bytes(b"%d" % number) for number in range(6)]
        given = await asyncio.gather(
            *(store.set_if_not_exists(key, value) for value in values), return_exceptions=True
        )
        # A writer that finds another one creating the value gets `FileExistsError`.
        assert all(each is None or isinstance(each, FileExistsError) for each in given), given
        found = await store.get(key, CPU)
        await store.set_if_not_exists(key, CPU.buffer.from_bytes(b"late"))
        again = await store.get(key, CPU)
        assert found is not None
        assert again is not None
        assert again.to_bytes() == found.to_bytes()
        return found.to_bytes()

    for number in range(5):
        assert int(sync(race(str(number)))) in range(6)
    assert pool.ls("store") == ["0", "1", "2", "3", "4"]


def test_a_prefix_is_not_a_directory_beside_it(pool: oc.Pool) -> None:
    store = PoolStore(pool / "store")
    for key in ("foo/c/0", "foo/c/1", "foobar/c/0", "fo", "a/foo/x"):
        sync(store.set(key, CPU.buffer.from_bytes(b"1234")))

    async def listed(prefix: str) -> list[str]:
        return sorted([key async for key in store.list_prefix(prefix)])

    assert sync(listed("foo")) == ["foo/c/0", "foo/c/1", "foobar/c/0"]
    assert sync(listed("foo/")) == ["foo/c/0", "foo/c/1"]
    assert sync(listed("foo/c/1")) == ["foo/c/1"]
    assert sync(listed("nothing/there")) == []
    assert sync(store.getsize_prefix("foo")) == 8
    assert sync(store.getsize_prefix("")) == 20
    sync(store.delete_dir("foo"))
    sync(store.delete_dir("foobar/c/0"))  # deletes a value: no key lies below it
    assert sync(listed("")) == ["a/foo/x", "fo", "foobar/c/0"]
    sync(store.delete("a"))
    assert sync(store.exists("a/foo/x"))
    # A directory is removed with its last value, as in zarr's own store in memory.
    sync(store.delete("a/foo/x"))
    sync(store.delete_dir("foobar/c"))
    assert pool.ls("store") == ["fo"]


def test_what_cannot_be_is_said(pool: oc.Pool) -> None:
    with pytest.raises(NotFoundError, match="no directory"):
        sync(PoolStore.open(pool / "nowhere", read_only=True))
    for wrong in ("/plain/path", "outcore://no-port/x"):
        with pytest.raises(InvalidError, match="HOST:PORT"):
            PoolStore(wrong)
    store = PoolStore(pool / "store")
    with pytest.raises(TypeError, match="Buffer"):
        sync(store.set("x", b"bytes"))  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"\.\."):
        sync(store.get("../x", CPU))
    with pytest.raises(NotFoundError, match="no value"):
        sync(store.getsize("x"))


def test_a_store_is_its_address(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    key = (pool / "").root.key
    if key is not None:
        monkeypatch.setenv("OUTCORE_KEY", key)
    store = PoolStore(pool / "store", read_only=True)
    assert store == PoolStore(str(store)) == pickle.loads(pickle.dumps(store))
    assert hash(store) == hash(PoolStore(pool / "store"))
    assert store != PoolStore(pool / "other")
    assert not store.with_read_only(False).read_only
    assert str(PoolStore(pool / "")).endswith("/")
