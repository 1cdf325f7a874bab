"""Signal handlers that run inside an assignment of many runs, and use the same array."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from killed_writers import CONTEXT, opened
from timeouts import HANG_S

import outcore as oc


def read(array: oc.Array) -> None:
    assert set(array[:, 0, 0]) <= {0.0, 7.0}
    assert array[1, 255, 1023] == 0.0


def write(array: oc.Array) -> None:
    array[:, 255, 1::512] = 5.0


def assign(kind: str, above: Path, action: Callable[[oc.Array], None]) -> None:
    """Assign to two chunks, each of more runs than are written between two looks for signals."""
    handled = 0
    with (
        opened(kind, above) as root,
        oc.create_array(root / "A", (2, 256, 1024), chunks=(1, 256, 1024)) as array,
    ):

        def handler(*_: object) -> None:
            nonlocal handled
            action(array)
            handled += 1
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        action(array)  # This imports modules, which a handler must not do.
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while handled < 3:
            array[:, :, ::2] = 7.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert (array[:, :, ::2] == 7.0).all()


CASES = [("plain", read), ("plain", write), ("plain", oc.Array.flush), ("pool", read)]


@pytest.mark.parametrize(("kind", "action"), CASES)
def test_a_handler_uses_the_chunks_of_an_assignment(
    tmp_path: Path, kind: str, action: Callable[[oc.Array], None]
) -> None:
    process = CONTEXT.Process(target=assign, args=(kind, tmp_path, action))
    process.start()
    process.join(timeout=HANG_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode == 0, "-9: the handler waits for the assignment, which waits for it"
