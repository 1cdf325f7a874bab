"""Communicators without MPI: of threads, and of processes that share a directory."""

import pickle
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0
"""Only a rank that hangs takes this long."""


class ThreadComm:
    """One rank of a job of threads."""

    def __init__(self, rank: int, shared: "ThreadJob") -> None:
        self.rank = rank
        self.size = shared.size
        self._shared = shared

    def bcast(self, value: Any, root: int = 0) -> Any:
        if self.rank == root:
            self._shared.value = pickle.dumps(value)
        self._shared.barrier.wait()
        found = pickle.loads(self._shared.value)
        self._shared.barrier.wait()
        return found

    def barrier(self) -> None:
        self._shared.barrier.wait()


class DupComm(ThreadComm):
    """A rank whose communicator can be duplicated, as MPI's can."""

    def __init__(self, rank: int, shared: "ThreadJob") -> None:
        super().__init__(rank, shared)
        self.duplicates: list[DupComm] = []
        self.is_freed = False

    def Dup(self) -> "DupComm":  # noqa: N802 - as MPI has it
        fresh = DupComm(self.rank, self._shared.duplicate(len(self.duplicates) + 1))
        self.duplicates.append(fresh)
        return fresh

    def Free(self) -> None:  # noqa: N802
        self.is_freed = True


class Life:
    """The number of messages of a rank, and the number at which it dies and sends no more."""

    def __init__(self, dies_at: int | None) -> None:
        self.messages, self._dies_at = 0, dies_at

    def go_on(self) -> None:
        if self.messages == self._dies_at:
            raise SystemExit(f"the rank dies at its message {self.messages}")
        self.messages += 1


Said = dict[tuple[int, ...], bytes]
"""Messages of each rank: by number of the duplicate, if any, of the message, and of the rank."""


class NonblockingComm(ThreadComm):
    """A rank with non-blocking messages, as in MPI; it may die at one of them.

    Messages of its duplicates count too.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        said: Said,
        dies_at: int | None = None,
        original: "NonblockingComm | None" = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.life = Life(dies_at) if original is None else original.life
        self._said, self._steps, self._duplicates = said, 0, 0
        self._number = () if original is None else (original._duplicates,)

    @property
    def messages(self) -> int:
        """Return the number of messages, with those of duplicates."""
        return self.life.messages

    def _say(self, content: bytes) -> int:
        self.life.go_on()
        self._said[*self._number, self._steps, self.rank] = bytes(content)
        self._steps += 1
        return self._steps - 1

    def _arrival(self, step: int, ranks: Iterable[int], memory: bytearray) -> "Arrival":
        return Arrival(self._said, [(*self._number, step, rank) for rank in ranks], memory)

    def Ibcast(self, memory: bytearray, root: int = 0) -> "Arrival":  # noqa: N802 - as MPI has it
        step = self._say(memory if self.rank == root else b"")
        return self._arrival(step, [root], memory)

    def Iallgather(self, mine: bytearray, all_of: bytearray) -> "Arrival":  # noqa: N802
        return self._arrival(self._say(mine), range(self.size), all_of)

    def Ibarrier(self) -> "Arrival":  # noqa: N802
        return self._arrival(self._say(b"."), range(self.size), bytearray(self.size))

    def barrier(self) -> None:
        _wait(self.Ibarrier())

    def Idup(self) -> tuple["NonblockingComm", "Arrival"]:  # noqa: N802
        step = self._say(b".")
        self._duplicates += 1
        fresh = NonblockingComm(self.rank, self.size, self._said, original=self)
        return fresh, self._arrival(step, range(self.size), bytearray(self.size))

    def Dup(self) -> "NonblockingComm":  # noqa: N802
        fresh, arrival = self.Idup()
        _wait(arrival)
        return fresh


class SaidInFiles(Said):
    """Messages of ranks in several processes."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def _file(self, key: object) -> Path:
        return self._directory / f"said{key}"

    def __setitem__(self, key: tuple[int, ...], content: bytes) -> None:
        fresh = self._file(key).with_suffix(".new")
        fresh.write_bytes(content)
        fresh.rename(self._file(key))

    def __contains__(self, key: object) -> bool:
        return self._file(key).exists()

    def __getitem__(self, key: tuple[int, ...]) -> bytes:
        return self._file(key).read_bytes()


class Arrival:
    """Pending messages, and the memory for them."""

    def __init__(self, said: Said, keys: list[tuple[int, ...]], memory: bytearray) -> None:
        self._said, self._keys, self._memory = said, keys, memory

    def Test(self) -> bool:  # noqa: N802
        if not all(key in self._said for key in self._keys):
            return False
        self._memory[:] = b"".join(self._said[key] for key in self._keys)
        return True


def _wait(arrival: Arrival) -> None:
    while not arrival.Test():
        time.sleep(0.002)


class TorchComm:
    """One rank of a job of threads, with the interface of ``torch.distributed``."""

    def __init__(self, comm: ThreadComm) -> None:
        self._comm = comm

    def get_rank(self) -> int:
        return self._comm.rank

    def get_world_size(self) -> int:
        return self._comm.size

    def broadcast_object_list(self, values: list[Any], src: int = 0) -> None:
        values[:] = self._comm.bcast(values, src)

    def barrier(self) -> None:
        self._comm.barrier()


class ThreadJob:
    """A job whose ranks are threads of this process."""

    def __init__(self, size: int, patience_s: float = PATIENCE_S) -> None:
        self.size = size
        self.value = b""
        self.barrier = threading.Barrier(size, timeout=patience_s)
        self._patience_s = patience_s
        self._duplicates: dict[int, ThreadJob] = {}
        self._lock = threading.Lock()

    def duplicate(self, number: int) -> "ThreadJob":
        """Return the same ranks with separate messages: the n-th duplicate, for every rank."""
        with self._lock:
            fresh = ThreadJob(self.size, self._patience_s)
            return self._duplicates.setdefault(number, fresh)

    def run(self, work: Callable[[ThreadComm], Any], *, can_duplicate: bool = False) -> list[Any]:
        """Return what `work` returns on each rank, or the exception that it raises."""
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                found[rank] = work(DupComm(rank, self) if can_duplicate else ThreadComm(rank, self))
            except BaseException as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


class FileComm:
    """One rank of a job of processes: messages are files of a directory."""

    def __init__(self, directory: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._directory = directory
        self._steps = 0

    def bcast(self, value: Any, root: int = 0) -> Any:
        self._steps += 1
        said = self._directory / f"bcast{self._steps}"
        if self.rank == root:
            fresh = said.with_suffix(".new")
            fresh.write_bytes(pickle.dumps(value))
            fresh.rename(said)
        until = time.monotonic() + PATIENCE_S
        while not said.exists():
            assert time.monotonic() < until
            time.sleep(0.002)
        return pickle.loads(said.read_bytes())

    def Ibarrier(self) -> "_Arrival":  # noqa: N802 - as MPI has it
        self._steps += 1
        (self._directory / f"barrier{self._steps}-{self.rank}").touch()
        return _Arrival(self._directory, f"barrier{self._steps}-*", self.size)

    def barrier(self) -> None:
        arrival = self.Ibarrier()
        while not arrival.Test():
            time.sleep(0.002)


class _Arrival:
    def __init__(self, directory: Path, pattern: str, size: int) -> None:
        self._directory, self._pattern, self._size = directory, pattern, size

    def Test(self) -> bool:  # noqa: N802
        return len(list(self._directory.glob(self._pattern))) == self._size
