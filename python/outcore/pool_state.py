"""The directory ``pool`` in a pool's first one: its key and settings, logs, and which daemons run.

Only its owner can use it. A file has its name only once its content is durable.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from outcore.daemon_process import DaemonProcess, process_with
from outcore.errors import ExistsError, InvalidError
from outcore.processes import started_ticks
from outcore.volumes import sync_names

STATE = "pool"
"""Name of the directory."""

KEY = "key"
"""Name of the pool's key in it."""

Config: TypeAlias = dict[str, Any]
"""Settings of one daemon, by their names."""

_RUNNING = "running.json"
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class PoolSettings:
    """The options of ``outcore pool up`` that the next call repeats.

    Attributes
    ----------
    listen
        ``HOST`` or ``HOST:PORT`` that other machines use; `None`: none do.
    metrics
        Port of the manager's metrics; `None`: there are none.
    tls
        Whether connections over a network are encrypted.
    """

    listen: str | None = None
    metrics: int | None = None
    tls: bool = False

    def updated(self, **given: Any) -> "PoolSettings":
        """Return the same settings, but for those given that are not `None`."""
        changed = {name: value for name, value in given.items() if value is not None}
        return PoolSettings(**asdict(self) | changed)


class PoolState:
    """The directory ``pool`` in the pool's directory `first`."""

    def __init__(self, first: Path) -> None:
        self.path = first / STATE
        self.key = self.path / KEY

    def make(self) -> None:
        """Make the directory, and take the rights of other users from one that is there."""
        make_directory(self.path)
        self.path.chmod(0o700)
        for each in self.path.iterdir():
            # Nobody else comes as far as the sockets, whose modes are their daemons' affair.
            if each.is_file() and not each.is_symlink():
                each.chmod(0o600)
        with contextlib.suppress(ExistsError):
            make_key(self.key)

    def settings(self) -> PoolSettings:
        """Read the settings of the last start; the defaults if there was none.

        Raises
        ------
        InvalidError
            If the file is damaged.
        """
        file = self.path / _SETTINGS
        try:
            return PoolSettings(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            return PoolSettings()
        except (ValueError, TypeError):
            raise InvalidError(
                f"{file} is damaged; remove it, and give the options of the pool once more"
            ) from None

    def keep_settings(self, settings: PoolSettings) -> None:
        """Keep the settings for the next start."""
        replace(self.path / _SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")

    def config_file(self, name: str) -> Path:
        """Path of the settings of the daemon `name`: ``manager``, or ``io`` and its number."""
        return self.path / f"{name}.conf"

    def log_file(self, name: str) -> Path:
        """Path of a daemon's log."""
        return self.path / f"{name}.log"

    def keep_config(self, name: str, config: Config) -> None:
        """Write the settings of a daemon."""
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in config.items()]
        replace(self.config_file(name), "".join(lines))

    def configs(self) -> dict[str, Config]:
        """Read the settings of each daemon that was ever started here, the manager's first."""
        names = [file.stem for file in self.path.glob("*.conf")]
        found = {name: _config(self.config_file(name)) for name in sorted(names, key=_order)}
        return {name: each for name, each in found.items() if "directory" in each}

    def numbers(self) -> dict[str, int]:
        """Return the number of the last I/O server in each directory, by number."""
        found = {each["directory"]: _number(name) for name, each in self.configs().items()}
        return {directory: number for directory, number in found.items() if number is not None}

    def daemons(self) -> list[DaemonProcess]:
        """List the daemons that were started, alive or not.

        Daemons that run by settings in this directory are found among the processes of this
        machine where no file tells of them.

        Raises
        ------
        InvalidError
            If the file that tells of them is damaged, and none of them runs.
        """
        recorded, error = [], None
        try:
            recorded = _recorded(self.path / _RUNNING)
        except InvalidError as damage:
            error = damage
        known = {(each.role, each.directory): each for each in recorded}
        for name, config in self.configs().items():
            number = _number(name)
            place = "manager" if number is None else "io", config["directory"]
            before = known.get(place)
            if before is not None and before.is_alive:
                continue
            pid = process_with(self.config_file(name))
            ticks = None if pid is None else started_ticks(pid)
            if pid is not None and ticks is not None:
                listen, metrics = config.get("listen", ()), config.get("metrics")
                url = None if metrics is None else f"http://{metrics}/metrics"
                known[place] = DaemonProcess(
                    place[0], number, place[1], pid, ticks, tuple(listen), url
                )
        if error is not None and not known:
            raise error
        return list(known.values())

    def record(self, daemons: Sequence[DaemonProcess]) -> None:
        """Note which daemons run. That none runs takes no room on the disk."""
        if not daemons:
            (self.path / _RUNNING).unlink(missing_ok=True)
            return
        text = json.dumps([asdict(daemon) for daemon in daemons], indent=2) + "\n"
        replace(self.path / _RUNNING, text)


def make_directory(path: Path) -> None:
    """Make a directory of mode 0700, and those above it, durably, unless it is there."""
    fresh = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in fresh:
        sync_names(each.parent)


def replace(path: Path, text: str) -> None:
    """Write a file of mode 0600 in place of the one that is there, durably.

    A file that has this content already stays: a full disk has no room for another one.
    """
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    _written(path, text).replace(path)
    sync_names(path.parent)


def make_key(path: Path) -> None:
    """Make the key of a pool, 32 random bytes in hexadecimal digits, in a new file.

    Raises
    ------
    ExistsError
        If there is such a file.
    """
    refusal = ExistsError(f"{path} exists; give another name for the key")
    if path.exists():
        raise refusal
    fresh = _written(path, f"outcore-pool-key-1 {secrets.token_hex(32)}\n")
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise refusal from None
    except OSError:  # no links on this file system
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_names(path.parent)


def _written(path: Path, text: str) -> Path:
    """Write the content of a file beside it, durably."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return fresh


def _recorded(file: Path) -> list[DaemonProcess]:
    """Read which daemons were started."""
    try:
        return [
            DaemonProcess(**document | {"addresses": tuple(document["addresses"])})
            for document in json.loads(file.read_bytes())
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        raise InvalidError(
            f"{file} is damaged, and no daemon of the pool runs; remove it"
        ) from None


def _config(file: Path) -> Config:
    """Read the settings of a daemon, as far as they are there."""
    found = {}
    for line in file.read_text(errors="replace").splitlines():
        name, _, value = line.partition(" = ")
        with contextlib.suppress(ValueError):
            found[name] = json.loads(value)
    return found


def _number(name: str) -> int | None:
    """Return the number in the name of an I/O server's files; `None` for those of the manager."""
    number = name.removeprefix("io")
    return int(number) if number != name and number.isdigit() else None


def _order(name: str) -> int:
    number = _number(name)
    return -1 if number is None else number
