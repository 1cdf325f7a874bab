"""Names of served pools, and connections to them."""

import os
import re

from outcore import _core
from outcore.errors import InvalidError
from outcore.pool.pool import Pool
from outcore.storage.volumes import PathLike

_SERVED = re.compile(r"(outcore(?:\+tls)?):/{1,2}([^/,]+:[0-9]+(?:,[^/,]+:[0-9]+)*)/?")
_SOCKET = re.compile(r"outcore:(/.+?)(?:::)?")


def connect(url: str, *, key: PathLike | None = None) -> Pool:
    """Connect to a served pool, on this machine or another one.

    Parameters
    ----------
    url
        ``outcore://HOST:PORT`` of the pool's manager; ``outcore+tls://HOST:PORT`` if it listens
        with TLS: then all traffic is encrypted; or ``outcore:/PATH`` of its UNIX socket on this
        machine. ``HOST:PORT,HOST:PORT`` names a manager and its stand-by. A program may connect to
        a pool several times. The connections are independent, like two processes. Closing one makes
        its open files unusable; the others stay usable.
    key
        File with the pool's key, or with a user's key; by default the value of the variable
        ``OUTCORE_KEY``. A UNIX socket needs no key.

    Returns
    -------
    Pool

    Raises
    ------
    InvalidError
        If `url` is not the address of a pool.
    NotFoundError
        If the key file does not exist.
    DiskError
        If no server answers.
    DeniedError
        If the key belongs to another pool, or there is none.
    """
    return connect_patiently(url, key)


def connect_patiently(url: str, key: PathLike | None, patience_s: int | None = None) -> Pool:
    """Connect like `connect`; calls fail after a server was unreachable for `patience_s`."""
    file = os.environ.get("OUTCORE_KEY") if key is None else os.fspath(key)
    if found := _SERVED.fullmatch(url):
        way = "tls" if found[1] == "outcore+tls" else "tcp"
        addresses = [f"{way}:{place}" for place in found[2].split(",")]
        name = f"{found[1]}://{found[2]}/"
    elif found := _SOCKET.fullmatch(url):
        addresses, name = [f"unix:{found[1]}"], f"outcore:{found[1]}::"
    else:
        raise InvalidError(
            f"{url!r} is no address of a pool; write outcore://HOST:PORT, outcore+tls://HOST:PORT, "
            "or outcore:/PATH of a UNIX socket"
        )
    core = _core.Pool.connect(addresses, file, patience_s=patience_s)
    return Pool(core, name, is_shared=True, key=file)
