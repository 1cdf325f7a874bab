"""Start, find and stop the daemons of a pool on this machine."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from outcore import _core
from outcore._util.this_machine import started_ticks
from outcore.errors import BusyError, InvalidError, NotFoundError, OutcoreError
from outcore.pool.daemon_process import DaemonProcess, started_verb, stop_one
from outcore.pool.directories import check_directories
from outcore.pool.state import STATE, Config, PoolSettings, PoolState, make_directory
from outcore.storage.volumes import exclusive, place

PORT = 7171
"""Default port of the manager; the I/O servers use the ports after it."""

_MARK = "server.json"
_LOOK_S = 10


def start(
    directories: Sequence[Path],
    listen: str | None = None,
    metrics: int | None = None,
    *,
    tls: bool | None = None,
    store: str | None = None,
    page: int | None = None,
    new: bool = False,
) -> Iterator[DaemonProcess]:
    """Start the daemons of the pool in some directories; make a new pool if there is none.

    If some daemons run already, start the missing ones, at their earlier addresses if they ran
    before. Options that are not given keep the values of the last start.

    Parameters
    ----------
    directories
        One directory for each I/O server. The first also contains the manager's files.
    listen
        ``HOST`` or ``HOST:PORT`` by which other machines reach this one; initially the daemons
        listen on this machine only.
    metrics
        Port of the manager's metrics on this machine; the I/O servers use the ports after it. With
        0, each daemon takes any free port. Initially there are no metrics.
    tls
        Whether to encrypt network connections; initially they are not encrypted.
    store
        URL of the PostgreSQL database with the metadata, such as ``postgres://user@host/database``;
        initially they are in the first directory.
    page
        Port of the manager's page for people on this machine; 0 takes any free port. Initially
        there is no page.
    new
        Whether an empty directory becomes a new server although a server of the pool is missing.

    Yields
    ------
    DaemonProcess
        Each daemon as soon as it listens.

    Raises
    ------
    BusyError
        If all daemons run already, a signal has suspended one, or another call is starting or
        stopping them.
    NotFoundError
        If a directory is empty and a server of the pool is missing, unless `new`: the disk of that
        server may not be mounted.
    OutcoreError
        If a daemon does not start, with its message, or does not report within two minutes that it
        listens. The daemons that this call started are stopped again.
    """
    places = [Path(os.path.abspath(directory)) for directory in directories]
    if not places:
        raise InvalidError("need at least one directory for the pool")
    check_directories(places)
    given = {"listen": listen, "metrics": metrics, "tls": tls, "store": store, "page": page}
    yield from _start(places, given, is_new=new)


def start_again(
    first: Path,
    listen: str | None = None,
    metrics: int | None = None,
    *,
    tls: bool | None = None,
    store: str | None = None,
    page: int | None = None,
) -> Iterator[DaemonProcess]:
    """Start the daemons of a pool in all of its directories, given the first one.

    Retired servers are not started. Parameters and errors are those of `start`.

    Raises
    ------
    NotFoundError
        If no pool was started there.
    """
    first = Path(os.path.abspath(first))
    known = list(map(Path, PoolState(first).numbers()))
    if not known or not (first / "manager").is_dir():
        raise NotFoundError(
            f"no pool was started in {first}: its disk may not be mounted; mount it, or make a "
            f"pool there with: outcore pool up --dirs {first}"
        )
    places = list(dict.fromkeys([first, *known]))
    check_directories(places)
    given = {"listen": listen, "metrics": metrics, "tls": tls, "store": store, "page": page}
    yield from _start(places, given, skips_retired=True)


def _start(
    places: list[Path],
    given: dict[str, Any],
    *,
    is_new: bool = False,
    skips_retired: bool = False,
) -> Iterator[DaemonProcess]:
    make_directory(places[0])
    state = PoolState(places[0])
    state.make()
    with _alone(state):
        settings = state.settings().updated(**given)
        _host_and_port(settings.listen)
        yield from _Start(state, places, settings).run(is_new, skips_retired)
        state.keep_settings(settings)


class _Start:
    """One start of the daemons of a pool."""

    def __init__(self, state: PoolState, places: list[Path], settings: PoolSettings) -> None:
        self._state, self._places, self._settings = state, places, settings
        self._known = state.daemons()
        self._alive = [daemon for daemon in self._known if daemon.is_alive]
        self._started: list[DaemonProcess] = []

    def run(self, is_new: bool, skips_retired: bool) -> Iterator[DaemonProcess]:
        """Start the missing daemons; stop them again if one fails."""
        first = self._places[0]
        for daemon in self._alive:
            if daemon.is_stopped:
                raise BusyError(
                    f"the {daemon.name} in {daemon.directory} was stopped by a signal; resume it "
                    f"with: kill -CONT {daemon.pid}, or end it with: kill -KILL {daemon.pid}"
                )
        missing = [each for each in self._places if _found(self._alive, "io", each) is None]
        try:
            if _found(self._alive, "manager", first) is None:
                yield self._start_one("manager", first, None)
            elif not missing:
                raise self._all_run()
            seats = self._seats(missing, is_new, skips_retired)
            if not seats and not self._started:
                raise self._all_run()
            for directory, number in seats:
                make_directory(directory)
                if number is None:
                    with contextlib.closing(self._connected()) as pool:
                        yield self._start_one("io", directory, pool.new_server(), is_new=True)
                else:
                    yield self._start_one("io", directory, number)
        except BaseException:
            for daemon in reversed(self._started):
                stop_one(daemon)
            self._state.record(self._known if self._alive else [])
            raise

    def _all_run(self) -> BusyError:
        first = self._places[0]
        return BusyError(
            f"the pool in {first} runs already ({len(self._alive)} daemons); stop it with: "
            f"outcore pool down {first}"
        )

    def _seats(
        self, missing: list[Path], is_new: bool, skips_retired: bool
    ) -> list[tuple[Path, int | None]]:
        """List the directories in which to start servers, with their numbers if they have one."""
        with contextlib.closing(self._connected()) as pool:
            retired = pool.retired_ids
            numbers = {place: number_in(place) for place in missing}
            seats = [
                (place, number)
                for place, number in numbers.items()
                # The manager needs the first directory even if its server is retired.
                if number not in retired or not (skips_retired or place == self._places[0])
            ]
            if skips_retired:
                last = self._state.numbers()
                seats = [
                    (place, number)
                    for place, number in seats
                    if number is not None or last.get(str(place)) not in retired
                ]
            fresh = [place for place, number in seats if number is None]
            if fresh and not is_new:
                self._check_all_there(pool, fresh[0])
        return seats

    def _check_all_there(self, pool: _core.Pool, fresh: Path) -> None:
        """Refuse a new server in a directory that may be the mount point of a missing disk."""
        used = self._state.numbers()
        there = {number_in(place) for place in (*self._places, *map(Path, used))}
        there.update(each.server for each in self._alive)
        away = set(pool.server_ids) - set(pool.retired_ids) - there
        if away - set(used.values()):
            # Servers that never ran here may run on other machines.
            away -= {number for number, *_, error in pool.servers(True) if error is None}
        if not away:
            return
        was_here = used.get(str(fresh))
        number = was_here if was_here in away else min(away)
        place = next((place for place, each in used.items() if each == number), None)
        where = "" if place is None else f", which was in {place}"
        raise NotFoundError(
            f"{fresh} has nothing of this pool, and its I/O server {number} is missing{where}: a "
            "disk may not be mounted; mount it, or make a new server there with --new"
        )

    def _connected(self) -> _core.Pool:
        (manager,) = (each for each in (*self._started, *self._alive) if each.role == "manager")
        return _connected(manager, self._state)

    def _start_one(
        self, role: str, directory: Path, number: int | None, *, is_new: bool = False
    ) -> DaemonProcess:
        name = "manager" if number is None else f"io{number}"
        given = self._settings
        host, port = _host_and_port(given.listen)
        if number is not None:
            port = port and port + 1 + number
        its_port = None if number is not None and given.listen is None else port
        way = "tls" if given.tls else "tcp"
        config: Config = {
            "directory": str(directory),
            "listen": _addresses(self._state.path / f"{name}.sock", way, host, its_port),
            "key_file": str(self._state.key),
        } | _metrics(given.metrics, 0 if number is None else 1 + number)
        if number is None and given.page is not None:
            config["page"] = f"127.0.0.1:{given.page}"
        before = _found(self._known, role, directory) if self._alive else None
        if before is not None and before.server == number:
            # The other daemons, and clients, look for it at its earlier addresses.
            config["listen"] = list(before.addresses)
            config |= _metrics_of(before)
        if role == "io":
            (manager,) = (each for each in (*self._started, *self._alive) if each.server is None)
            config["manager"] = list(manager.addresses[:1])
            config |= {"server": number} if is_new else {}
        elif given.store is not None:
            config["store"] = given.store
        self._started.append(_start_one(self._state, name, role, config))
        # Record it at once, so that the next call finds the daemons if kill -9 stops this call.
        self._state.record(_joined(self._known if self._alive else [], self._started))
        return self._started[-1]


def _found(daemons: Sequence[DaemonProcess], role: str, directory: Path) -> DaemonProcess | None:
    """Find the daemon of a directory in a list; `None` if there is none."""
    mine = [each for each in daemons if (each.role, each.directory) == (role, str(directory))]
    return mine[0] if mine else None


def _joined(known: list[DaemonProcess], started: list[DaemonProcess]) -> list[DaemonProcess]:
    """Replace the known daemons by newly started ones with the same role and directory."""
    each = {(daemon.role, daemon.directory): daemon for daemon in (*known, *started)}
    return list(each.values())


def number_in(directory: Path) -> int | None:
    """Read the number of the I/O server of a directory; `None` if it has none.

    Raises
    ------
    CorruptError
        If the file with the number is damaged.
    """
    mark = _core.server_mark(str(directory)) if directory.is_dir() else None
    return None if mark is None else mark[1]


def _connected(manager: DaemonProcess, state: PoolState) -> _core.Pool:
    addresses = list(manager.addresses[:1])
    return _core.Pool.connect(addresses, key_file=str(state.key), patience_s=_LOOK_S)


def retired(first: Path) -> list[int]:
    """List the retired I/O servers of the pool with this first directory.

    The list is empty if the manager does not run or does not answer.
    """
    manager = running_manager(first)
    if manager is not None and not manager.is_stopped:
        with (
            contextlib.suppress(OutcoreError),
            contextlib.closing(_connected(manager, PoolState(first))) as pool,
        ):
            return pool.retired_ids
    return []


def running(directory: Path) -> list[DaemonProcess]:
    """List the daemons that were started in a pool's first directory, alive or not."""
    return PoolState(Path(os.path.abspath(directory))).daemons()


def running_manager(directory: Path) -> DaemonProcess | None:
    """Return the manager of the pool with this first directory, if it runs."""
    alive = (each for each in running(directory) if each.role == "manager" and each.is_alive)
    return next(alive, None)


def directories(first: Path) -> list[Path]:
    """List the directories of a pool, given the first, as of the last start of its daemons."""
    # Leave out empty directories: their disk is not mounted, and they would become new servers.
    known = map(Path, PoolState(first).numbers())
    return list(dict.fromkeys([first, *(each for each in known if (each / _MARK).is_file())]))


def left_out(given: Sequence[Path]) -> list[Path]:
    """List the directories of the pool's last start that are not given.

    Directories whose servers run are not listed.
    """
    places = [Path(os.path.abspath(directory)) for directory in given]
    used = [*places, *(Path(each.directory) for each in running(places[0]) if each.is_alive)]
    return [each for each in directories(places[0]) if each not in used]


def check_started(directory: Path) -> None:
    """Refuse a directory that is not the first one of a pool that was started here.

    Raises
    ------
    NotFoundError
        If no pool was started there.
    """
    if not (directory / STATE).is_dir():
        raise NotFoundError(f"no pool was started in {directory}; name its first directory")


def stop(directory: Path) -> list[DaemonProcess]:
    """Stop the daemons of the pool with this first directory; return those that ran.

    Each daemon finishes its pending requests, and makes them durable.

    Raises
    ------
    NotFoundError
        If no pool was started there.
    BusyError
        If another call is starting or stopping them.
    """
    directory = Path(os.path.abspath(directory))
    check_started(directory)
    state = PoolState(directory)
    with _alone(state):
        alive = [daemon for daemon in state.daemons() if daemon.is_alive]
        # Stop the I/O servers before the manager: they need it to start, but not to stop.
        for daemon in reversed(alive):
            stop_one(daemon)
        state.record([])
    return alive


def url_of(directory: Path) -> str:
    """Return the URL of the pool that runs in a directory.

    Raises
    ------
    NotFoundError
        If no pool runs there.
    """
    manager = running_manager(directory)
    for address in () if manager is None else manager.addresses:
        way, _, place = address.partition(":")
        if way in ("tcp", "tls"):
            return f"{'outcore' if way == 'tcp' else 'outcore+tls'}://{place}"
    raise NotFoundError(f"no pool runs in {directory}; start it with: outcore pool up {directory}")


@contextlib.contextmanager
def _alone(state: PoolState) -> Iterator[None]:
    """Lock the pool, so that no other call starts or stops its daemons."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(place(state.path), "starting or stopping daemons"))
        except BusyError:
            raise BusyError(
                f"the pool in {state.path.parent} is being started or stopped by another call; "
                "wait for it to end"
            ) from None
        yield


def _start_one(state: PoolState, name: str, role: str, config: Config) -> DaemonProcess:
    """Start a daemon, and wait until it listens."""
    state.keep_config(name, config)
    log = state.log_file(name)
    words = ["serve", role, "--config", str(state.config_file(name))]
    with started_verb(words, log, "/") as (pid, said):
        if not said or "error" in said:
            why = said["error"]["message"] if said else _last_line(log)
            raise OutcoreError(f"the {role} daemon in {config['directory']} does not start: {why}")
        daemon = DaemonProcess(
            role, said["server"], config["directory"], pid, started_ticks(pid) or 0,
            tuple(said["listen"]), said["metrics"], said["page"],
        )  # fmt: skip
        # Record the ports that it took, because later calls find the daemon by this file.
        taken = {"listen": list(daemon.addresses)} | _metrics_of(daemon)
        if config != config | taken:
            state.keep_config(name, config | taken)
    return daemon


def _host_and_port(listen: str | None) -> tuple[str, int]:
    if listen is None:
        return "127.0.0.1", PORT
    host, _, port = listen.rpartition(":") if ":" in listen else (listen, "", str(PORT))
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise InvalidError(f"need HOST or HOST:PORT to listen on, have {listen!r}")
    return host, int(port)


def _addresses(socket: Path, way: str, host: str, port: int | None) -> list[str]:
    """Choose the addresses of a daemon: a UNIX socket for this machine, and a port."""
    # The path of a UNIX socket has at most 107 bytes.
    found = [f"unix:{socket}"] if len(os.fsencode(socket)) < 108 else []
    if port is not None or not found:
        found.append(f"{way}:{host}:{port or 0}")
    return found


def _metrics(first: int | None, number: int) -> dict[str, str]:
    """Return the setting for the metrics address of a daemon."""
    return {} if first is None else {"metrics": f"127.0.0.1:{first and first + number}"}


def _metrics_of(daemon: DaemonProcess) -> dict[str, str]:
    """Return the settings for the metrics and the page of a daemon that has been started."""
    served = {"metrics": daemon.metrics, "page": daemon.page}
    return {name: urlsplit(url).netloc for name, url in served.items() if url is not None}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
