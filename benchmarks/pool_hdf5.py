"""HDF5 in a served pool: h5py through the driver against a file of the Python client.

Both write one contiguous array, sync and close it, and read it into memory that exists.
"""

import functools
import time
from collections.abc import Callable

import h5py
import numpy as np

import outcore as oc
import outcore.h5py
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_served import served_here
from benchmarks.rounds import alternate

NBYTES = {"full": 1 << 30, "quick": 1 << 27, "tiny": 1 << 20}
HDF5, CLIENT = "h5py", "client"


def measure(setting: Setting) -> Outcome:
    nbytes = NBYTES[setting.size]
    data = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    out = np.zeros_like(data)
    with served_here(setting) as served, oc.connect(served.url, key=served.key) as pool:
        separator = "" if served.way == "TCP" else "::"
        opened = functools.partial(
            h5py.File, f"{served.url}{separator}/u.h5", driver="outcore", key=served.key
        )

        def write_hdf5() -> None:
            with opened("w") as file:
                file.create_dataset("u", data=data)

        def read_hdf5() -> None:
            with opened("r") as file:
                file["u"].read_direct(out)

        def write_client() -> None:
            with pool.open("u.bin", "wb") as file:
                file.write(data)
                file.sync()

        def read_client() -> None:
            with pool.open("u.bin", "rb") as file:
                file.read_at(0, out=out)

        figures = []
        calls = {"write": (write_hdf5, write_client), "read": (read_hdf5, read_client)}
        for what, (ours, rival) in calls.items():
            found = alternate(
                what,
                {HDF5: rate_of(ours, nbytes), CLIENT: rate_of(rival, nbytes)},
                rounds=1 if setting.size == "tiny" else 5,
                show=as_rate,
            )
            if what == "read" and not np.array_equal(out, data):
                raise AssertionError("the bytes read are not those written")
            figures.append(
                Figure(
                    f"{what} {nbytes >> 20} MiB of one dataset over {served.way}, 2 directories: "
                    "rate over that of a file of the Python client",
                    found.ratios(HDF5, CLIENT),
                    Target("≥", 0.85),
                    ours=as_rate(found.median(HDF5)),
                    rival=as_rate(found.median(CLIENT)),
                    details=dict(found.measures),
                )
            )
    return Outcome(figures)


def rate_of(call: Callable[[], None], nbytes: int) -> Callable[[], float]:
    """Return a contender that measures bytes per second."""

    def run() -> float:
        begin = time.monotonic()
        call()
        return nbytes / (time.monotonic() - begin)

    return run


def as_rate(value: float) -> str:
    """Format bytes per second."""
    return f"{value / 1e9:.2f} GB/s"


if __name__ == "__main__":
    main("pool_hdf5", measure)
