"""A library that kills a process before one of its system calls, chosen by number."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library, for `LD_PRELOAD`; `kill_at_call.c` says how to use it."""
    library = tmp_path_factory.mktemp("preloaded") / "kill_at_call.so"
    source = Path(__file__).with_name("kill_at_call.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
