"""Whether the system lets a process read the memory of another, tested as servers do.

The system may refuse it by Yama (ptrace_scope), in containers (seccomp), and for hidden processes.
"""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

NONCE = ctypes.create_string_buffer(b"sixteen letters.")
"""The text that other processes look for."""

WHERE = (os.getpid(), ctypes.addressof(NONCE))


def finds_nonce(pid: int, address: int) -> bool:
    """Whether this process can read another's nonce at this address (process_vm_readv(2))."""
    found = ctypes.create_string_buffer(len(NONCE.value))
    ours = struct.pack("=QQ", ctypes.addressof(found), len(found))
    theirs = struct.pack("=QQ", address, len(found))
    moved = _libc.process_vm_readv(pid, ours, ctypes.c_ulong(1), theirs, ctypes.c_ulong(1), 0)
    return bool(moved == len(found) and found.raw == NONCE.value)


def is_read_by_itself() -> bool:
    """Whether servers in this process may read its memory."""
    return finds_nonce(*WHERE)


_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from direct_memory import WHERE

print(*WHERE, flush=True)
sys.stdin.read()
"""


def children_are_read() -> bool:
    """Whether servers in this process may read the memory of its child processes."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(Path(__file__).parent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        pid, address = map(int, child.stdout.readline().split())
        found = finds_nonce(pid, address)
        child.communicate()
    return found


_READER = """
import sys
sys.path.insert(0, sys.argv[1])
from direct_memory import finds_nonce

print(finds_nonce(int(sys.argv[2]), int(sys.argv[3])))
"""


def is_read_by_children() -> bool:
    """Whether servers that this process started may read its memory."""
    where = map(str, WHERE)
    ran = subprocess.run(
        [sys.executable, "-c", _READER, str(Path(__file__).parent), *where],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return ran.stdout == "True\n"


def hide() -> None:
    """Prevent other processes without capabilities from reading the memory of this one."""
    # PR_SET_DUMPABLE (prctl(2)); then only processes with CAP_SYS_PTRACE may read, so this one
    # drops its own (capset(2), version 3).
    assert _libc.prctl(4, 0, 0, 0, 0) == 0
    assert _libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0] * 6)) == 0
