"""The daemons of a pool on this machine: started, found again, and stopped.

All of it is in a directory ``pool`` in the first of the pool's directories: the key, a file of
settings and a log for each daemon, and who runs.
"""

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outcore import _core
from outcore.daemon_process import DaemonProcess, stop_one
from outcore.errors import BusyError, ExistsError, InvalidError, NotFoundError, OutcoreError
from outcore.pool_directories import check_directories
from outcore.processes import started_ticks
from outcore.volumes import exclusive, place

STATE = "pool"
"""Name of the directory in the pool's first one."""

KEY = "key"
"""Name of the pool's key in that directory."""

PORT = 7171
"""Of the manager, where none is given; the I/O servers take the ones after it."""

_RUNNING = "running.json"
_MARK = "server.json"
_START_S = 120.0
_LOOK_S = 10


def start(
    directories: Sequence[Path],
    listen: str | None = None,
    metrics: int | None = None,
    *,
    tls: bool = False,
) -> Iterator[DaemonProcess]:
    """Start the daemons of the pool in some directories, a new one where there is none.

    If some run already, those that are missing are started: where they were, if they ran before.

    Parameters
    ----------
    directories
        One for each I/O server. The first has the manager's files as well.
    listen
        ``HOST`` or ``HOST:PORT`` that other machines reach this one by; by default the daemons
        listen on this machine only.
    metrics
        Port of this machine at which the manager's metrics are; those of the I/O servers are at the
        ports after it. With 0, each is at any free port; by default there are none.
    tls
        Whether what goes over a network is encrypted.

    Yields
    ------
    DaemonProcess
        Each as soon as it listens.

    Raises
    ------
    BusyError
        If all of them run already, one was stopped by a signal, or another call starts or stops
        them now.
    OutcoreError
        If one does not start, with what it said, or does not say within two minutes that it
        listens. Those that were started are stopped again.
    """
    places = [Path(os.path.abspath(directory)) for directory in directories]
    if not places:
        raise InvalidError("need at least one directory for the pool")
    check_directories(places)
    state = places[0] / STATE
    for directory in (state, *places):
        directory.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)
    with _alone(state):
        yield from _start_all(state, places, listen, metrics, "tls" if tls else "tcp")


def _start_all(
    state: Path, places: list[Path], listen: str | None, metrics: int | None, way: str
) -> Iterator[DaemonProcess]:
    known = running(places[0])
    alive = [daemon for daemon in known if daemon.is_alive]
    wanted = [("manager", places[0]), *(("io", place) for place in places)]
    missing = [each for each in wanted if _found(alive, *each) is None]
    if not missing:
        raise BusyError(
            f"the pool in {places[0]} runs already ({len(alive)} daemons); "
            f"stop it with: outcore pool down {places[0]}"
        )
    for daemon in alive:
        if daemon.is_stopped:
            raise BusyError(
                f"the {daemon.name} in {daemon.directory} was stopped by a signal; let it go on "
                f"with: kill -CONT {daemon.pid}, or end it with: kill -KILL {daemon.pid}"
            )
    with contextlib.suppress(ExistsError):
        make_key(state / KEY)
    host, port = _host_and_port(listen)
    started: list[DaemonProcess] = []

    def start_one(role: str, directory: Path, number: int | None, *, is_new: bool) -> DaemonProcess:
        name = "manager" if number is None else f"io{number}"
        its_port = (
            port if number is None else (None if listen is None else port and port + 1 + number)
        )
        settings: dict[str, Any] = {
            "directory": str(directory),
            "listen": _addresses(state / f"{name}.sock", way, host, its_port),
            "key_file": str(state / KEY),
        } | _metrics(metrics, 0 if number is None else 1 + number)
        before = _found(known, role, directory) if alive else None
        if before is not None and before.server == number:
            # Where those that run, and clients, look for it.
            settings["listen"] = list(before.addresses)
            settings |= {} if before.metrics is None else {"metrics": before.metrics}
        if role == "io":
            settings["manager"] = list(manager_of().addresses[:1])
            settings |= {"server": number} if is_new else {}
        started.append(_start_one(state, name, role, settings))
        # What is stopped by kill -9 from here on can be found, and stopped.
        _write(state, _joined(known if alive else [], started))
        return started[-1]

    def manager_of() -> DaemonProcess:
        (manager,) = (each for each in (*started, *alive) if each.role == "manager")
        return manager

    try:
        for role, directory in missing:
            if role == "manager":
                yield start_one(role, directory, None, is_new=False)
                continue
            number, is_new, is_retired = _number_of(directory, manager_of(), state)
            if not (is_retired and directory == places[0]):
                # That one is needed for the manager, all the same.
                yield start_one(role, directory, number, is_new=is_new)
    except BaseException:
        for daemon in reversed(started):
            stop_one(daemon)
        _write(state, known if alive else [])
        raise


def _found(daemons: Sequence[DaemonProcess], role: str, directory: Path) -> DaemonProcess | None:
    """Find the daemon of a directory among some."""
    mine = [each for each in daemons if (each.role, each.directory) == (role, str(directory))]
    return mine[0] if mine else None


def _joined(known: list[DaemonProcess], started: list[DaemonProcess]) -> list[DaemonProcess]:
    """Put those that were started in the places of the same before."""
    each = {(daemon.role, daemon.directory): daemon for daemon in (*known, *started)}
    return list(each.values())


def _numbers(state: Path) -> dict[str, int]:
    """Tell by which numbers the files of the directories' servers are named here."""
    found = {}
    for config in sorted(state.glob("io*.conf")):
        number = config.stem.removeprefix("io")
        for line in config.read_text(errors="replace").splitlines():
            name, _, value = line.partition(" = ")
            if name == "directory" and number.isdigit():
                found[json.loads(value)] = int(number)
    return found


def _number_of(directory: Path, manager: DaemonProcess, state: Path) -> tuple[int, bool, bool]:
    """Find the number of a directory's server, whether it is new, and whether it was retired."""
    mark = _core.server_mark(str(directory))
    with contextlib.closing(_connected(manager, state)) as pool:
        if mark is None:
            return pool.new_server(), True, False
        return mark[1], False, mark[1] in pool.retired_ids


def _connected(manager: DaemonProcess, state: Path) -> _core.Pool:
    addresses = list(manager.addresses[:1])
    return _core.Pool.connect(addresses, key_file=str(state / KEY), patience_s=_LOOK_S)


def retired(first: Path) -> list[int]:
    """List the I/O servers that were retired of the pool whose first directory this is.

    There are none as far as its manager does not run, and say so.
    """
    for daemon in running(first):
        if daemon.role == "manager" and daemon.is_alive and not daemon.is_stopped:
            with (
                contextlib.suppress(OutcoreError),
                contextlib.closing(_connected(daemon, first / STATE)) as pool,
            ):
                return pool.retired_ids
    return []


def running(directory: Path) -> list[DaemonProcess]:
    """List the daemons that were started in a pool's first directory, alive or not."""
    try:
        documents = json.loads((directory / STATE / _RUNNING).read_bytes())
        return [
            DaemonProcess(**document | {"addresses": tuple(document["addresses"])})
            for document in documents
        ]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError):
        raise InvalidError(
            f"{directory / STATE / _RUNNING} is damaged; stop the daemons by hand, and remove it"
        ) from None


def directories(first: Path) -> list[Path]:
    """List the directories of the pool whose first this is, as its daemons were last started."""
    numbers = _numbers(first / STATE)
    others = map(Path, sorted(numbers, key=lambda directory: numbers[directory]))
    # One that is empty is that of a disk which is not there: it would become a new server.
    return list(dict.fromkeys([first, *(each for each in others if (each / _MARK).is_file())]))


def left_out(given: Sequence[Path]) -> list[Path]:
    """List the directories that the pool had when it was last started, and that are not given.

    Those whose servers run are not left out.
    """
    places = [Path(os.path.abspath(directory)) for directory in given]
    used = [*places, *(Path(each.directory) for each in running(places[0]) if each.is_alive)]
    return [each for each in directories(places[0]) if each not in used]


def check_started(directory: Path) -> None:
    """Refuse a directory that is not the first one of a pool that was started here.

    Raises
    ------
    NotFoundError
        If none was started there.
    """
    if not (directory / STATE).is_dir():
        raise NotFoundError(f"no pool was started in {directory}; name its first directory")


def stop(directory: Path) -> list[DaemonProcess]:
    """Stop the daemons of the pool whose first directory this is; return those that ran.

    Each finishes what it was asked, and makes it durable.

    Raises
    ------
    NotFoundError
        If none was started there.
    BusyError
        If another call starts or stops them now.
    """
    directory = Path(os.path.abspath(directory))
    check_started(directory)
    with _alone(directory / STATE):
        alive = [daemon for daemon in running(directory) if daemon.is_alive]
        # The I/O servers before the manager: a server that starts needs it, one that stops does
        # not.
        for daemon in reversed(alive):
            stop_one(daemon)
        _write(directory / STATE, [])
    return alive


def url_of(directory: Path) -> str:
    """Give the address of the pool that runs in a directory.

    Raises
    ------
    NotFoundError
        If none runs there.
    """
    for daemon in running(Path(os.path.abspath(directory))):
        if daemon.role == "manager" and daemon.is_alive:
            for address in daemon.addresses:
                way, _, place = address.partition(":")
                if way in ("tcp", "tls"):
                    return f"{'outcore' if way == 'tcp' else 'outcore+tls'}://{place}"
    raise NotFoundError(f"no pool runs in {directory}; start it with: outcore pool up --dirs ...")


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Be the only one who starts or stops the daemons of a pool."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(place(state), "starting or stopping daemons"))
        except BusyError:
            raise BusyError(
                f"the pool in {state.parent} is being started or stopped by another call; wait "
                "for it to end"
            ) from None
        yield


def _start_one(state: Path, name: str, role: str, settings: dict[str, Any]) -> DaemonProcess:
    """Start a daemon, and wait until it listens."""
    config, log = state / f"{name}.conf", state / f"{name}.log"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    config.write_text("".join(lines))
    main = "import sys; from outcore.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "serve", role, "--config", str(config), "--json"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    assert process.stdout is not None
    try:
        try:
            said = _first_document(process)
        except OutcoreError as error:
            said = {"error": {"message": f"{error}; see {log}"}}
        if said is None or "error" in said:
            why = said["error"]["message"] if said else _last_line(log)
            raise OutcoreError(
                f"the {role} daemon in {settings['directory']} does not start: {why}"
            )
    except BaseException:
        # Nobody would know of it, and it would hold its directory.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
    # It goes on by itself; nobody waits for it here.
    process.returncode = 0
    ticks = started_ticks(process.pid)
    return DaemonProcess(
        role, said["server"], settings["directory"], process.pid, ticks or 0,
        tuple(said["listen"]), said["metrics"],
    )  # fmt: skip


def _first_document(process: "subprocess.Popen[bytes]") -> dict[str, Any] | None:
    """Read the JSON document that a daemon prints when it listens, or when it cannot.

    Raises
    ------
    OutcoreError
        If it prints none for too long.
    """
    assert process.stdout is not None
    text, until = b"", time.monotonic() + _START_S
    pipe = select.poll()
    pipe.register(process.stdout)
    while pipe.poll(max(until - time.monotonic(), 0.0) * 1e3):
        if not (part := os.read(process.stdout.fileno(), 1 << 16)):
            return None
        text += part
        with contextlib.suppress(ValueError):
            document = json.loads(text)
            return document if isinstance(document, dict) else None
    raise OutcoreError(f"it did not say within {_START_S:g} s that it listens")


def _write(state: Path, daemons: list[DaemonProcess]) -> None:
    fresh = state / f"{_RUNNING}.new"
    fresh.write_text(json.dumps([asdict(daemon) for daemon in daemons], indent=2) + "\n")
    fresh.replace(state / _RUNNING)


def make_key(path: Path) -> None:
    """Make the key of a pool, 32 random bytes in hexadecimal digits, in a new file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ExistsError(f"{path} exists; give another name for the key") from None
    with open(handle, "w") as file:
        file.write(f"outcore-pool-key-1 {secrets.token_hex(32)}\n")


def _host_and_port(listen: str | None) -> tuple[str, int]:
    if listen is None:
        return "127.0.0.1", PORT
    host, _, port = listen.rpartition(":") if ":" in listen else (listen, "", str(PORT))
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise InvalidError(f"need HOST or HOST:PORT to listen on, have {listen!r}")
    return host, int(port)


def _addresses(socket: Path, way: str, host: str, port: int | None) -> list[str]:
    """Choose where a daemon listens: on a socket for this machine, and on a port."""
    # The path of a UNIX socket is at most 107 bytes.
    found = [f"unix:{socket}"] if len(os.fsencode(socket)) < 108 else []
    if port is not None or not found:
        found.append(f"{way}:{host}:{port or 0}")
    return found


def _metrics(first: int | None, number: int) -> dict[str, str]:
    """Say where the metrics of a daemon are."""
    return {} if first is None else {"metrics": f"127.0.0.1:{first and first + number}"}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
