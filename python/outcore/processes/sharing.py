"""Communication between the processes of a call.

There is a single kind of message. Each process sends a value and receives the values of all, or
learns which process has failed, and why. So a process that fails at any point reports that once,
and its report meets the next message of the others, whatever that is.
"""

import functools
import hashlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.communicator import TIMEOUT_S, Communicator
from outcore._util.launchers import check_launcher
from outcore._util.progress import ProgressLike
from outcore._util.signals import signals_held
from outcore.array_files.metadata import read_generation
from outcore.blas import blas_choice
from outcore.collective.call import LEAST_BYTES_S, patience_of, seconds_of
from outcore.errors import Interrupted, InvalidError, OutcoreError, from_kind
from outcore.layout.zarr_format import Metadata
from outcore.processes.deaths import Deaths, identity
from outcore.storage.volumes import Place
from outcore.version import VERSION

T = TypeVar("T")

LEAST_FLOPS_S = 1e9
"""Assumed speed of the slowest process, in operations per second. It extends waits for arithmetic.
"""


class Sharing:
    """The processes of a call, or this one alone; the call runs within its ``with``.

    A call inside another one may have its own.

    If one process fails, each of the others fails at its next message, with an error that names the
    process and the reason. All these errors have the attribute ``is_told``. Each message fails if
    the processes have several versions of outcore, or call several functions.

    Parameters
    ----------
    comm
        Communicator for `Communicator`; `None` for this process alone.
    timeout
        Time to wait for the other processes, beyond the time for their work.
    function
        Name of the function that all of them must call.

    Attributes
    ----------
    rank, size
        Number of this process, and number of processes.
    deaths
        Deaths of the others, which end all waits.
    """

    def __init__(
        self, comm: Any = None, timeout: float = TIMEOUT_S, function: str | None = None
    ) -> None:
        self.deaths, self._function = Deaths(), function
        given = None
        if comm is not None:
            given = Communicator(comm, patience_of(timeout), self.deaths.check)
        self.rank, self.size = (0, 1) if given is None else (given.rank, given.size)
        if given is not None:
            check_launcher(self.size, os.environ, sys.modules.get("mpi4py.MPI"))
        self._comm = given if self.size > 1 else None
        self._timeout = timeout
        self._is_over, self._has_failed, self._is_met = self._comm is None, False, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.tell(error)
            elif not self._is_over:
                self.meet()
                self._is_over = True
        except BaseException as late:
            error = late
            raise
        finally:
            self.deaths.close()
            if error is not None and self._has_failed:
                # All processes have an error, so a call around this one tells nobody again.
                vars(error)["is_known"] = True

    def tell(self, error: BaseException) -> None:
        """Report an error to the others, once; return when all of them have one."""
        if self._is_over or getattr(error, "is_known", False) or getattr(error, "is_lost", False):
            return  # A process that does not answer does not listen.
        try:
            self._gather(None, origin_of(error, self.rank), 0.0)
            vars(error)["is_told"] = True
        except Exception as lost:
            vars(error)["is_lost"] = True  # so a process may continue
            error.add_note(f"The other processes could not be notified: {lost}")

    @contextmanager
    def telling(self, warn: Callable[[BaseException], None] | None = None) -> Iterator[None]:
        """Report an error of the block to the other processes, and wait until they have stopped.

        They may use the locked memory of the block for that long. `warn` gets the error first.
        """
        try:
            yield
        except BaseException as error:
            if warn is not None and self.size > 1:
                warn(error)
            self.tell(error)
            raise

    def exchange(self, value: T, more_s: float = 0.0) -> list[T]:
        """Return the values of all processes, in the order of the ranks.

        Parameters
        ----------
        more_s
            Additional time to wait, if the others have much work.

        Raises
        ------
        OutcoreError
            If one of them has failed. The error raised here has the kind of that error.
        DiskError
            If one of them did not answer in time.
        """
        if self._comm is None:
            return [value]
        found: list[T] = self._gather(value, None, more_s)
        return found

    def meet(self, more_s: float = 0.0) -> None:
        """Return when every process has reached this call."""
        self.exchange(None, more_s)

    def same(self, value: T) -> T:
        """Return the value of the first process, since rounding differs between machines."""
        return self.exchange(value)[0]

    def added(self, mine: npt.NDArray[Any], more_s: float = 0.0) -> npt.NDArray[Any]:
        """Add up the values of all processes, in the order of the ranks."""
        all_of = self.exchange(mine, more_s)
        with np.errstate(over="ignore", invalid="ignore"):
            found: npt.NDArray[Any] = functools.reduce(np.add, all_of)
        return found

    def joined_norms(
        self, mine: npt.NDArray[np.float64], more_s: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Return 2-norms of columns, from the norms of the rows of each process."""
        all_of = self.exchange(mine, more_s)
        with np.errstate(over="ignore", invalid="ignore"):
            found: npt.NDArray[np.float64] = functools.reduce(np.hypot, all_of)
        return found

    def exchange_rows(self, X: npt.NDArray[Any], here: slice | None, more_s: float = 0.0) -> None:
        """Send these rows of X to the others, and receive theirs; a process may have none."""
        if self._comm is None:
            return
        mine = None if here is None else (here.start, X[here])
        for rank, theirs in enumerate(self.exchange(mine, more_s)):
            if theirs is not None and rank != self.rank:
                first, rows = theirs
                X[first : first + len(rows)] = rows

    def spread(self, X: npt.NDArray[Any], rows: int) -> None:
        """Send the first process's X to all, `rows` rows at a time."""
        if self._comm is None:
            return
        for first in range(0, len(X), rows):
            here = slice(first, first + rows)
            X[here] = self.same(X[here] if self.rank == 0 else None)

    def agree(self, have: Mapping[str, Any]) -> None:
        """Check that values, and the timeout, are equal on all processes.

        The error does not show bytes.

        Raises
        ------
        InvalidError
            On all of them, if the value of one differs from that of the first.
        """
        seconds_of(self._timeout)
        if self._comm is None:
            return
        # If a value cannot be sent, the others learn that.
        mine = pickle.dumps({"arguments": tuple(have), **have, "timeout=": self._timeout})
        self._compare([pickle.loads(each) for each in self.exchange(mine)])

    def agree_on(self, name: str, X: npt.NDArray[Any]) -> None:
        """Check that columns are equal on all processes."""
        if self._comm is not None:
            self.agree({name: digest_of(X)})

    def agree_on_matrix(self, source: Place, metadata: Metadata) -> None:
        """Check that all processes see the same matrix, before it is read."""
        if self._comm is not None:
            have = {
                "shape of A": metadata.shape, "type of A": metadata.dtype.str,
                "chunks of A": metadata.chunks, "order of A": metadata.order,
                "generation of A": read_generation(source),
            }  # fmt: skip
            self.agree(have)

    def budget(self, memory: int | str | None) -> int:
        """Return the bytes of a ``memory=`` argument. Processes of one host share its default."""
        here, found = self.here(), budget.resolve(memory)
        return found if memory is not None else found // here

    def threads(self, threads: int | None) -> int | None:
        """Return the threads of each process. The processes of a host share its processors."""
        if self._comm is None:
            return threads
        here = self.here()
        if threads is not None:
            return threads
        return max(blas_choice.in_use()[1] // here, 1) if here > 1 else None

    def progress(self, progress: ProgressLike) -> ProgressLike:
        """Return the progress argument of this process: only the first one shows a bar."""
        return progress if self.rank == 0 or callable(progress) else False

    @property
    def patience_s(self) -> int:
        """The timeout in whole seconds."""
        return patience_of(self._timeout)

    def duplicate(self, check: Callable[[], None]) -> tuple[Any, Communicator]:
        """Return a communicator of the same processes, and its interface.

        Parameters
        ----------
        check
            As for `Communicator`.
        """
        assert self._comm is not None
        found = self._comm.duplicate()
        return found, Communicator(found, self.patience_s, check)

    def check_mpi(self, what: str) -> None:
        """Refuse processes that do not use MPI by mpi4py from several threads."""
        if self._comm is not None:
            self._comm.check_mpi(what)

    def here(self) -> int:
        """Return how many of the processes run on this host."""
        hosts = self.exchange(socket.gethostname())
        return hosts.count(hosts[self.rank])

    def _compare(self, all_of: Sequence[Mapping[str, Any]]) -> None:
        """Check that the values of all processes, which all of them have, are those of the first.

        If names differ, the first name does not.
        """
        for rank, theirs in enumerate(all_of):
            for name, first in all_of[0].items():
                if theirs[name] != first:
                    self._is_over = self._has_failed = True
                    text = f"{first!r} on the first and {theirs[name]!r} on rank {rank}"
                    if isinstance(first, bytes):
                        text = f"another on rank {rank} than on the first"
                    raise InvalidError(
                        f"need the same {name} on every rank, have {text}; give the same everywhere"
                    )

    def _gather(self, value: Any, failed: "Origin | None", more_s: float) -> list[Any]:
        """Exchange values. A process that fails reports that, and receives nothing."""
        assert self._comm is not None
        same = {"version of outcore": VERSION, "function": self._function}
        with signals_held():
            try:
                own = None if self._is_met else identity()
                all_of = self._comm.allgather((value, failed, own, same), more_s)
                if not self._is_met:
                    self._is_met = True
                    processes = [theirs[2] for theirs in all_of]
                    self.deaths.watch(processes, self.rank)
                    # Another version, which fails below, may not take this step.
                    if not any(theirs[1] or theirs[3] != same for theirs in all_of):
                        self.deaths.watch_apart(
                            processes, self.rank, self.patience_s, self._comm.allgather
                        )
            except BaseException:
                self._is_over = True
                raise
            found = [theirs[1] for theirs in all_of if theirs[1]]
            # If any process has failed, all of them know it now, so no further message follows.
            self._is_over = self._has_failed = bool(found)
        if failed is None:
            if found:
                raise failure(found[0])
            self._compare([theirs[3] for theirs in all_of])
        return [theirs[0] for theirs in all_of]


class Origin(NamedTuple):
    """The process that failed first, and the kind, message and attributes of its error."""

    rank: int
    kind: str
    message: str
    more: dict[str, Any]


def origin_of(error: BaseException, rank: int) -> Origin:
    """Describe an error on process `rank` to the others, or the error of another that caused it."""
    found = getattr(error, "_origin", None)
    if isinstance(found, Origin):
        return found
    if isinstance(error, KeyboardInterrupt):
        return Origin(rank, Interrupted.kind, "was stopped, as by Ctrl-C", {})
    if isinstance(error, OutcoreError):
        more = {key: value for key, value in vars(error).items() if isinstance(value, _PLAIN)}
        return Origin(rank, error.kind, str(error), more)
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")
    return Origin(rank, OutcoreError.kind, text, {})


_PLAIN = (int, float, tuple, list)


def failure(origin: Origin) -> BaseException:
    """Return the error that reports the failure of another process."""
    rank, kind, message, more = origin
    if kind == Interrupted.kind:
        error: BaseException = Interrupted(f"rank {rank} {message}")
    else:
        error = from_kind(kind, f"rank {rank}: {message}")
    vars(error).update(more, _origin=origin, is_told=True)
    return error


def interrupted(doing: str, stop: BaseException, fix: str) -> Interrupted:
    """Return the error with which a call ends after Ctrl-C.

    Parameters
    ----------
    doing
        The call that stopped, such as "LU of A stopped".
    stop
        The exception. If it is about another process, the error names that process.
    fix
        How to resume.
    """
    origin = getattr(stop, "_origin", None)
    because = "" if origin is None else f", because rank {origin.rank} {origin.message}"
    error = Interrupted(f"{doing}{because}; {fix}")
    if origin is not None:
        vars(error)["_origin"] = origin
    return error


def seconds_for(nbytes: float, flops: float = 0.0) -> float:
    """Additional time to wait for a process with so much work."""
    return nbytes / LEAST_BYTES_S + flops / LEAST_FLOPS_S


def digest_of(X: npt.NDArray[Any]) -> bytes:
    """Return a digest of a matrix or vector."""
    digest = hashlib.blake2b(digest_size=16)
    for column in np.atleast_2d(X.T):
        digest.update(column.tobytes())
    return digest.digest()
