"""Numbers that the processes of a call tell each other while each works for itself.

`Team` notices an error of another process that is alive, and `Sharing` a process that does not come
to a common step. Here processes have no common step for hours, and nobody knows how long the work
of another one takes. So a thread of each process says several times in a second that it lives.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from outcore._util.signals import signals_held
from outcore.errors import DiskError
from outcore.processes.blocks import BlocksThread
from outcore.processes.team import Team

Numbers = npt.NDArray[np.int64]

_BEAT_S = 0.25
_POLL_S = 0.02

_unsent: list[Any] = []
"""Messages to processes that may have died, and their memory, which must stay allocated."""


class Beats:
    """The numbers of all processes, within its ``with``.

    Parameters
    ----------
    team
        The processes.
    count
        How many numbers each process has.
    heard
        Called with the numbers of all processes when they may have changed, by one thread at a
        time. An error that it raises ends the call.

    Attributes
    ----------
    numbers
        One row for each process, zeros at first.
    """

    def __init__(self, team: Team, count: int, heard: Callable[[Numbers], None]) -> None:
        self._team, self._heard = team, heard
        # The last number says whether the process is done.
        self._mine: Numbers = np.zeros(count + 1, np.int64)
        self._all = np.zeros((team.size, count + 1), np.int64)
        self._is_over, self._is_left = threading.Event(), False
        self._thread: BlocksThread | None = None
        self._others = [rank for rank in range(team.size) if rank != team.rank]

    @property
    def numbers(self) -> Numbers:
        """The newest numbers of each process."""
        return self._all[:, :-1]

    def __enter__(self) -> Self:
        if self._others:
            room = np.zeros_like(self._all)
            self._room = {rank: room[rank] for rank in self._others}
            self._coming = {rank: self._receive(rank) for rank in self._others}
            self._going: dict[int, tuple[Any, Numbers]] = {}
            self._heard_at = dict.fromkeys(self._others, time.monotonic())
            self._thread = BlocksThread(self._run, "outcore-beats", self._team)
        return self

    def __exit__(self, *_: object) -> None:
        with signals_held():
            self._is_left = True
            self._is_over.set()
            if self._thread is None:
                return
            self._thread.end()
            for request in self._coming.values():
                with contextlib.suppress(Exception):
                    request.Cancel()
                    request.Wait()
            _unsent.extend(going for going in self._going.values() if not going[0].Test())

    def tell(self, numbers: Sequence[int], *, is_last: bool = False) -> None:
        """Set the numbers of this process."""
        mine: Numbers = np.array([*numbers, int(is_last)], np.int64)
        self._mine = self._all[self._team.rank] = mine
        if is_last:
            self._is_over.set()
        if not self._others:
            self._heard(self.numbers)

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Wait until each process has told its last numbers, and call `meanwhile` again and again.

        Raises
        ------
        OutcoreError
            If another process has failed, or does not answer.
        """
        while not self._all[:, -1].all() or (self._thread and self._thread.is_alive()):
            self._team.check()
            meanwhile()
            time.sleep(_POLL_S)
        self._team.check()

    def _run(self) -> None:
        try:
            while not (self._is_left or self._is_done()):
                self._beat()
                self._look_for_the_dead()
                if self._is_over.wait(_BEAT_S):
                    time.sleep(_POLL_S)
            self._beat()
        except BaseException as error:
            self._team.fail(error)

    def _is_done(self) -> bool:
        """Whether each process has told its last numbers, and the others have this one's."""
        sent = [rank in self._going and self._going[rank][0].Test() for rank in self._others]
        lasts = [bool(self._going[rank][1][-1]) for rank in self._others if rank in self._going]
        return bool(self._all[:, -1].all()) and all(sent) and all(lasts)

    def _beat(self) -> None:
        """Send the numbers of this process, and receive those of the others."""
        mine = self._mine
        for rank in self._others:
            going = self._going.get(rank)
            # Its last numbers are the last message, since the other may have left then.
            if going is None or (going[0].Test() and not going[1][-1]):
                self._going[rank] = self._team.raw.Isend(mine, rank), mine
        for rank in self._others:
            while not self._all[rank, -1] and self._coming[rank].Test():
                self._all[rank] = self._room[rank]
                self._heard_at[rank] = time.monotonic()
                if not self._all[rank, -1]:
                    self._coming[rank] = self._receive(rank)
        self._heard(self.numbers)

    def _receive(self, rank: int) -> Any:
        return self._team.raw.Irecv(self._room[rank], rank)

    def _look_for_the_dead(self) -> None:
        for rank in self._others:
            silent_s = time.monotonic() - self._heard_at[rank]
            if not self._all[rank, -1] and silent_s > self._team.patience_s:
                error = DiskError(
                    f"rank {self._team.rank} has heard nothing of rank {rank} for {silent_s:.3g} "
                    "s; that process has failed: look for its error"
                )
                vars(error)["is_lost"] = True
                raise error
