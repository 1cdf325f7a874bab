"""The predictions of `outcore balance`, compared with the gains of an enlarged testbed."""

import functools
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Setting
from benchmarks.beowulf.hosts import Hosts, make_files
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient
from benchmarks.testbed import Testbed
from benchmarks.testbed.pool import MAIN, BedPool
from outcore.balance.balance import rate

DISK_BYTES_S = 20_000_000
LINK_BITS_S = 80_000_000
HOSTS = 3
OUTCORE = [sys.executable, "-c", MAIN]
SECONDS = {"full": 6.0, "quick": 3.0, "tiny": 0.1}
COPY_S = {"full": 4.0, "quick": 2.0, "tiny": 0.3}
FILE_BYTES = {"full": 96 << 20, "quick": 48 << 20, "tiny": 8 << 20}
_ROOM_BYTES = 640 << 20
"""Size of a disk for the files of the measurement, of which it may use a quarter."""


@dataclass(frozen=True)
class Check:
    """A predicted gain and the measured one, with the totals before and after in bytes/s."""

    what: str
    predicted: float
    before_bytes_s: float
    after_bytes_s: float

    @property
    def measured(self) -> float:
        """The measured gain."""
        return self.after_bytes_s / self.before_bytes_s

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return abs(self.predicted / self.measured - 1)


def figure(check: Check) -> Figure:
    """Return the error of a prediction."""
    return Figure(
        f"{check.what}: error of the predicted gain",
        [check.error],
        Target("≤", 0.15),
        ours=f"predicted {check.predicted:.2f}, measured {check.measured:.2f}",
        rival=f"{rate(check.before_bytes_s)}, then {rate(check.after_bytes_s)}",
    )


def measure(setting: Setting) -> list[Check]:
    """Compare predictions for copies between hosts, and for reads of a pool."""
    return [*of_hosts(setting), *of_a_pool(setting)]


def of_hosts(setting: Setting) -> Iterator[Check]:
    """Predict for hosts with one disk and one link each, then add a link, a disk and a host."""
    count, seconds = HOSTS + 1, COPY_S[setting.size]
    with Testbed(
        setting.scratch, disks=2 * count, disk_bytes=_ROOM_BYTES // 2, disk_bytes_s=DISK_BYTES_S,
        hosts=count, networks=2, link_bits_s=LINK_BITS_S,
    ) as bed:  # fmt: skip
        disks = [disk.path for disk in bed.disks]
        use = predicted_for_hosts(setting, bed, disks)
        gains = {gain["part"]: gain for gain in use["gains"]}
        make_files(disks)

        @functools.cache
        def total(hosts: int, disks_each: int, channels: int, is_remote: bool) -> float:
            places = [disks[number::count][:disks_each] for number in range(hosts)]
            with Hosts(bed, places) as each:
                return each.copies(hosts * is_remote, channels, seconds)

        larger = {"channel": (HOSTS, 1, 2), "disk": (HOSTS, 2, 1), "host": (HOSTS + 1, 1, 1)}
        for part, extent in larger.items():
            for share in ("local", "remote"):
                is_remote = share == "remote"
                yield Check(
                    f"{HOSTS} hosts, another {part}, {share} copies",
                    gains[part][share],
                    total(HOSTS, 1, 1, is_remote),
                    total(*extent, is_remote),
                )


def predicted_for_hosts(setting: Setting, bed: Testbed, disks: list[Path]) -> dict[str, Any]:
    """Run `outcore balance --hosts` for the first hosts, by their first networks."""
    hosts = bed.hosts[:HOSTS]
    for host, disk in zip(hosts, disks, strict=False):
        (setting.scratch / host.name).symlink_to(disk)
    enter = bed.limited(["ip", "netns", "exec", "{host}", *OUTCORE])
    words = [
        *OUTCORE, "balance", "--json", "--seconds", SECONDS[setting.size],
        "--run", shlex.join(enter), "--directory", setting.scratch / "{host}",
        "--hosts", *(f"{host.name}={host.addresses[0]}" for host in hosts),
    ]  # fmt: skip
    found: dict[str, Any] = json.loads(bed.run(words))["uses"][0]
    return found


def of_a_pool(setting: Setting) -> Iterator[Check]:
    """Predict for a server with one channel, then add a channel, or a server with a disk."""
    nbytes = FILE_BYTES[setting.size]
    with Testbed(
        setting.scratch, disks=4, disk_bytes=_ROOM_BYTES, disk_bytes_s=DISK_BYTES_S, hosts=2,
        networks=2, link_bits_s=LINK_BITS_S,
    ) as bed:  # fmt: skip
        here, there = bed.hosts
        places = [disk.path / "data" for disk in bed.disks]

        def pool(name: str, directories: list[Path], networks: tuple[int, ...]) -> BedPool:
            return BedPool(bed, setting.scratch / name, directories, host=there, networks=networks)

        one = pool("one", places[:1], (0,))
        words = [*OUTCORE, "balance", one.url, "--key", one.key_file, "--json"]
        printed = bed.run([*words, "--seconds", 2 * SECONDS[setting.size]], here)
        uses = {use["use"]: use for use in json.loads(printed)["uses"]}
        gains = {gain["part"]: gain["remote"] for gain in uses["read"]["gains"]}
        rates = {
            "": _read(one, here.command, nbytes),
            "channel": _read(pool("channels", places[1:2], (0, 1)), here.command, nbytes),
            "disk": _read(pool("disks", places[2:], (0,)), here.command, nbytes),
        }
        for part in ("channel", "disk"):
            what = f"a pool's server, another {part}, remote reads"
            yield Check(what, gains[part], rates[""], rates[part])


def _read(pool: BedPool, command: Callable[..., list[str]], nbytes: int) -> float:
    with PoolClient(pool.url, pool.key_file, command()) as client:
        client.seconds("make", name="f", nbytes=nbytes)
        return nbytes / client.seconds("read", name="f", offset=0, nbytes=nbytes)
