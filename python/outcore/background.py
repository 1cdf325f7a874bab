"""One call beside the program: a thread that writes while the program computes."""

import contextlib
import os
import threading
from collections.abc import Callable

_NICENESS = 19


class BackgroundCheckpoint:
    """A checkpoint that is written while the program goes on.

    What it fails with is raised by `wait`; if nobody waits, by the group's next call.
    """

    def __init__(self, write: Callable[[], int]) -> None:
        self._number = -1
        self._error: BaseException | None = None
        self.is_told = False
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="outcore-checkpoint", daemon=False
        )
        self._thread.start()

    def _run(self, write: Callable[[], int]) -> None:
        # On Linux each thread has a priority of its own. The program's come first.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._number = write()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the checkpoint is durable; return its number.

        Ctrl-C ends the wait, not the writing.

        Parameters
        ----------
        timeout
            Seconds to wait; by default as long as it takes.

        Raises
        ------
        TimeoutError
            If it is being written then; it goes on.
        OutcoreError
            What it failed with: there is no such checkpoint, and the ones before are as they were.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the checkpoint is still being written; wait for it again")
        self.is_told = True
        if self._error is not None:
            raise self._error
        return self._number
