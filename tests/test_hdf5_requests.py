"""The requests and system calls that HDF5 files cost through the driver, and their alignment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_files import driven, key, name, pool, url
from mounted import client, counted
from served import Served

import outcore as oc

__all__ = ["client", "key", "name", "pool", "url"]  # fixtures

UNIT = 1 << 20


def requests(client: oc.Pool) -> int:
    return sum(one[2] for one in (client / "").root.core.servers())


@pytest.fixture
def asked(client: oc.Pool) -> Callable[[Callable[[], Any]], int]:
    """Return a function that counts the requests of a call to the two servers."""

    def count(call: Callable[[], Any]) -> int:
        before = requests(client)
        nothing = requests(client) - before
        before = requests(client)
        call()
        return requests(client) - before - nothing

    return count


def test_a_strided_selection_is_one_request_to_each_server(
    url: str, asked: Callable[[Callable[[], Any]], int]
) -> None:
    values = np.random.default_rng(1).standard_normal((2000, 1000))
    with driven(url, "w") as file:
        file["x"] = values
    with driven(url, "r+") as file:
        x = file["x"]
        out = np.empty((1000, 500))
        assert asked(lambda: x.read_direct(out, np.s_[::2, 100:600])) == 2
        assert (out == values[::2, 100:600]).all()
        values[1::2, 3:503] = out
        assert asked(lambda: x.write_direct(out, None, np.s_[1::2, 3:503])) == 2
        assert (x[:] == values).all()


def make_chunks_and_metadata(file: h5py.File) -> None:
    """Write chunks of a stripe unit, and metadata between them."""
    file.create_dataset("chunked", (1024, 1024), "f8", chunks=(512, 256))
    for i in range(0, 1024, 512):
        file.create_group(f"group {i}").attrs["text"] = "x" * 1000
        file["chunked"][i : i + 512] = i
    file["whole"] = np.ones((1024, 512))


def unaligned(file: h5py.File) -> int:
    """Count the chunks of all datasets that begin inside a stripe unit."""
    starts = [file["whole"].id.get_offset()]
    chunked = file["chunked"].id
    starts += [chunked.get_chunk_info(i).byte_offset for i in range(chunked.get_num_chunks())]
    return sum(start % UNIT != 0 for start in starts)


def test_data_are_aligned_by_the_stripe_unit(
    pool: Served, name: str, tmp_path: Path, asked: Callable[[Callable[[], Any]], int]
) -> None:
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        make_chunks_and_metadata(file)
        assert unaligned(file) == 9
    with driven(f"{pool.url}/{name}", "w") as file:
        make_chunks_and_metadata(file)
        assert unaligned(file) == 0
        # Each chunk is one stripe unit of one server.
        assert asked(lambda: file["chunked"].id.read_direct_chunk((0, 0))) == 1
    # The user's own alignment stays.
    with driven(f"{pool.url}/own-{name}", "w", alignment_interval=4096) as file:
        make_chunks_and_metadata(file)
        assert unaligned(file) > 0


@pytest.mark.parametrize("options", [{}, {"alignment_interval": 2}])
def test_servers_get_aligned_requests_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    with counted(tmp_path) as pool:
        monkeypatch.setenv("OUTCORE_KEY", str(pool.served.key))
        url = f"{pool.served.url}/u.h5"
        with driven(url, "w", **options) as file:
            make_chunks_and_metadata(file)
        with driven(url, "r+", rdcc_nbytes=0) as file:
            # From here on, HDF5 has the metadata.
            unaligned(file)
            before = pool.unaligned()
            for name in ("chunked", "whole"):
                values = file[name][:]
                file[name][:] = values
            data = pool.unaligned() - before
    assert (data == 0) is (options == {})


@pytest.mark.parametrize(("threshold", "is_aligned"), [(100_000, True), (200_000, False)])
def test_an_alignment_threshold_stays(url: str, threshold: int, is_aligned: bool) -> None:
    with driven(url, "w", alignment_threshold=threshold) as file:
        x = file.create_dataset("x", (1, 1 << 14), "f8", chunks=(1, 1 << 14))
        x[:] = 1
        assert (x.id.get_chunk_info(0).byte_offset % UNIT == 0) is is_aligned


def test_strided_reads_outside_pools_are_few_calls(tmp_path: Path) -> None:
    values = np.random.default_rng(4).standard_normal((300, 400))
    with driven(tmp_path / "u.h5", "w") as file:
        file["x"] = values
    with driven(tmp_path / "u.h5") as file:
        x = file["x"]
        picked = np.s_[:, ::5]
        x[picked]
        before = reads()
        found = x[picked]
        assert reads() - before < 50
        assert (found == values[picked]).all()
        for picked in (
            np.s_[5:290:7, 3],
            np.s_[::3, ::7],
            np.s_[:, 100:390],
            np.s_[[1, 2, 90, 200], 1::2],
        ):
            assert (x[picked] == values[picked]).all()


def reads() -> int:
    """Count the system calls by which this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])
