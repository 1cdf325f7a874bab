"""The state directory ``pool`` of a pool: its key, settings, logs, and running daemons.

It lies in the pool's first directory, and only its owner can use it. A file gets its name only
after its content is durable.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from outcore._util.this_machine import started_ticks
from outcore.errors import ExistsError, InvalidError
from outcore.pool.daemon_process import DaemonProcess, process_with
from outcore.storage.volumes import sync_names

STATE = "pool"
"""Name of the directory."""

KEY = "key"
"""Name of the file with the pool's key, in this directory."""

Config: TypeAlias = dict[str, Any]
"""Settings of one daemon, by name."""

_RUNNING = "running.json"
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class PoolSettings:
    """The options of ``outcore pool up`` that the next call reuses.

    Attributes
    ----------
    listen
        ``HOST`` or ``HOST:PORT`` for other machines; `None` if there are none.
    metrics
        Port of the manager's metrics; `None` if it publishes none.
    tls
        Whether network connections are encrypted.
    store
        URL of the database with the metadata; `None` if they are in the first directory.
    page
        Port of the manager's page for people on this machine; `None` if it serves none.
    """

    listen: str | None = None
    metrics: int | None = None
    tls: bool = False
    store: str | None = None
    page: int | None = None

    def updated(self, **given: Any) -> "PoolSettings":
        """Return a copy with the given values that are not `None`."""
        changed = {name: value for name, value in given.items() if value is not None}
        return PoolSettings(**asdict(self) | changed)


class PoolState:
    """The directory ``pool`` in the pool's directory `first`."""

    def __init__(self, first: Path) -> None:
        self.path = first / STATE
        self.key = self.path / KEY

    def make(self) -> None:
        """Create the directory, or remove the rights of other users from an existing one."""
        make_directory(self.path)
        self.path.chmod(0o700)
        for each in self.path.iterdir():
            # Other users cannot reach the sockets in it, whose modes their daemons set.
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
                f"{file} is damaged; remove it, and give the options of the pool again"
            ) from None

    def store(self) -> str | None:
        """Return the URL of the database with the metadata, without its password.

        It is `None` if the metadata are in the first directory.
        """
        with contextlib.suppress(InvalidError):
            url = self.settings().store
            return None if url is None else without_password(url)
        return None

    def keep_settings(self, settings: PoolSettings) -> None:
        """Store the settings for the next start."""
        replace(self.path / _SETTINGS, json.dumps(asdict(settings), indent=2) + "\n")

    def config_file(self, name: str) -> Path:
        """Return the path of the settings of a daemon: ``manager``, or ``io`` and its number."""
        return self.path / f"{name}.conf"

    def log_file(self, name: str) -> Path:
        """Return the path of a daemon's log."""
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
        """Return the number of the last I/O server in each directory, by directory."""
        found = {each["directory"]: _number(name) for name, each in self.configs().items()}
        return {directory: number for directory, number in found.items() if number is not None}

    def daemons(self) -> list[DaemonProcess]:
        """List the daemons that were started, alive or not.

        If no file records a daemon that runs with settings in this directory, it is found among the
        processes of this machine.

        Raises
        ------
        InvalidError
            If the file with the daemons is damaged, and none of them runs.
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
                page = f"http://{config['page']}/" if "page" in config else None
                known[place] = DaemonProcess(
                    place[0], number, place[1], pid, ticks, tuple(listen), url, page
                )
        if error is not None and not known:
            raise error
        return list(known.values())

    def record(self, daemons: Sequence[DaemonProcess]) -> None:
        """Record the running daemons. With none, the file is removed, which needs no disk space."""
        if not daemons:
            (self.path / _RUNNING).unlink(missing_ok=True)
            return
        text = json.dumps([asdict(daemon) for daemon in daemons], indent=2) + "\n"
        replace(self.path / _RUNNING, text)


def without_password(url: str) -> str:
    """Return the URL of a database without the password that it may have."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    words = [word for word in parts.query.split("&") if not word.startswith("password=")]
    netloc = user.partition(":")[0] + at + place
    return urlunsplit(parts._replace(netloc=netloc, query="&".join(words)))


def make_directory(path: Path) -> None:
    """Create a directory of mode 0700 and its missing parents, durably, unless it exists."""
    fresh = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in fresh:
        sync_names(each.parent)


def replace(path: Path, text: str) -> None:
    """Replace a file by one of mode 0600, durably.

    A file that has this content already stays, because a full disk has no space for another one.
    """
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    _written(path, text).replace(path)
    sync_names(path.parent)


def make_key(path: Path) -> None:
    """Create the key of a pool, 32 random bytes in hexadecimal digits, in a new file.

    Raises
    ------
    ExistsError
        If the file exists.
    """
    refusal = f"{path} exists; give another name for the key"
    if path.exists():
        raise ExistsError(refusal)
    fresh = _written(path, f"outcore-pool-key-1 {secrets.token_hex(32)}\n")
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise ExistsError(refusal) from None
    except OSError:  # the file system has no hard links
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_names(path.parent)


def _written(path: Path, text: str) -> Path:
    """Write the content into a temporary file beside `path`, durably."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return fresh


def _recorded(file: Path) -> list[DaemonProcess]:
    """Read the recorded daemons."""
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
    """Read the settings of a daemon; skip damaged lines."""
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
