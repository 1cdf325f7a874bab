"""A manager with a failing disk: the error names the disk, and does not call the data malformed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from timeouts import HANG_S

import outcore as oc

SCRIPT = """
import sys
import outcore as oc
from outcore.errors import DiskError
try:
    oc.Pool.embedded([sys.argv[1]])
except DiskError as error:
    print(error.kind, error)
"""


# From the second page on, SQLite reports an unreadable page as malformed.
@pytest.mark.parametrize("first_byte", [0, 2048])
def test_a_disk_that_fails_is_named(tmp_path: Path, first_byte: int) -> None:
    library = tmp_path / "unreadable.so"
    source = Path(__file__).with_name("unreadable_store.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    oc.Pool.embedded([tmp_path / "a"]).close()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a")],
        env={**os.environ, "LD_PRELOAD": str(library), "UNREADABLE_STORE": str(first_byte)},
        capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    store = tmp_path / "a/manager/metadata.sqlite"
    assert done.stdout.startswith("io need to "), done.stdout
    assert f"have a disk that does not read {store}: Input/output error" in done.stdout
