"""The network: one server on loopback against disk and TCP, and two channels against one."""

import functools

from benchmarks import fio, iperf3
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient
from benchmarks.rounds import Contender, alternate
from benchmarks.streaming import rate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool

LOOPBACK_BYTES = {"full": 1 << 30, "quick": 256 << 20, "tiny": 16 << 20}
LINK_BYTES = {"full": 512 << 20, "quick": 128 << 20, "tiny": 8 << 20}
LINK_BITS_S = 1_000_000_000
FIO_BLOCK_BYTES = 4 << 20
FIO_DEPTH = 4
IPERF3_SECONDS = {"full": 3, "quick": 1, "tiny": 1}


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("the wire", skipped=lacking)])
    return Outcome([*loopback(setting), *channels(setting)])


def loopback(setting: Setting) -> list[Figure]:
    """Measure one server on loopback, with the disk unthrottled."""
    what = "one server on loopback"
    if not (fio.is_installed() and iperf3.is_installed()):
        return [Figure(what, skipped="fio or iperf3 is not installed")]
    nbytes = LOOPBACK_BYTES[setting.size]
    plain = setting.scratch / "plain"
    with plain.open("wb") as file:
        file.write(bytes(nbytes))
    disk = fio.Fio(plain, nbytes, FIO_BLOCK_BYTES, FIO_DEPTH, huge_pages=False)
    figures = []
    with Testbed(setting.scratch) as bed:
        pool = BedPool(bed, setting.scratch / "loopback", [setting.scratch / "loopback-data"])
        with PoolClient(pool.url, pool.key_file) as client:
            client.seconds("make", name="f", nbytes=nbytes)
            for direction in ("write", "read"):
                runs: dict[str, Contender] = {
                    "pool": functools.partial(transfer, client, direction, nbytes),
                    "disk": functools.partial(disk.rate, direction),
                    "TCP": functools.partial(
                        iperf3.rate, "127.0.0.1", seconds=IPERF3_SECONDS[setting.size]
                    ),
                }
                rounds = 1 if setting.size == "tiny" else 5
                found = alternate(f"loopback, {direction}", runs, rounds=rounds, show=rate)
                limits = zip(found.measures["disk"], found.measures["TCP"], strict=True)
                pairs = zip(found.measures["pool"], map(min, limits), strict=True)
                figures.append(
                    Figure(
                        f"{what}, {direction}, {nbytes >> 20} MiB: rate against the slower of "
                        "disk (fio) and TCP (iperf3)",
                        [ours / limit for ours, limit in pairs],
                        Target("≥", 0.7),
                        ours=rate(found.median("pool")),
                        rival=f"disk {rate(found.median('disk'))}, TCP {rate(found.median('TCP'))}",
                        details=dict(found.measures),
                    )
                )
    return figures


def channels(setting: Setting) -> list[Figure]:
    """Compare a server with two channels with one with a single channel."""
    nbytes = LINK_BYTES[setting.size]
    figures = []
    with Testbed(setting.scratch, hosts=2, networks=2, link_bits_s=LINK_BITS_S) as bed:
        here, there = bed.hosts
        pools = {
            name: BedPool(
                bed,
                setting.scratch / f"state-{len(networks)}",
                [setting.scratch / f"data-{len(networks)}"],
                host=there,
                networks=networks,
            )
            for name, networks in {"one": (0,), "two": (0, 1)}.items()
        }
        prefix = here.command()
        with (
            PoolClient(pools["one"].url, pools["one"].key_file, prefix) as one,
            PoolClient(pools["two"].url, pools["two"].key_file, prefix) as two,
        ):
            clients = {"one": one, "two": two}
            for client in clients.values():
                client.seconds("make", name="f", nbytes=nbytes)
            for direction in ("write", "read"):
                runs: dict[str, Contender] = {
                    name: functools.partial(transfer, client, direction, nbytes)
                    for name, client in clients.items()
                }
                rounds = 1 if setting.size == "tiny" else 5
                found = alternate(f"channels, {direction}", runs, rounds=rounds, show=rate)
                figures.append(
                    Figure(
                        f"two channels of 1 Gbit/s against one, {direction}, {nbytes >> 20} MiB",
                        found.ratios("two", "one"),
                        Target("≥", 1.9),
                        ours=rate(found.median("two")),
                        rival=rate(found.median("one")),
                        peak=rate(2 * LINK_BITS_S / 8),
                        details=dict(found.measures),
                    )
                )
    return figures


def transfer(client: PoolClient, direction: str, nbytes: int) -> float:
    """Return bytes per second of a whole file."""
    return nbytes / client.seconds(direction, name="f", offset=0, nbytes=nbytes)


if __name__ == "__main__":
    main("pool_network", measure)
