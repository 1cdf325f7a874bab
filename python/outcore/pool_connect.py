"""Pools that are served: how they are named, and connected to."""

import os
import re

from outcore import _core
from outcore.errors import InvalidError
from outcore.pool import Pool
from outcore.volumes import PathLike

_SERVED = re.compile(r"(outcore(?:\+tls)?):/{1,2}([^/]+:[0-9]+)/?")
_SOCKET = re.compile(r"outcore:(/.+?)(?:::)?")


def connect(url: str, *, key: PathLike | None = None) -> Pool:
    """Connect to a pool that is served, on this machine or others.

    Parameters
    ----------
    url
        ``outcore://HOST:PORT``, where the pool's manager listens, or ``outcore+tls://HOST:PORT``
        if it listens there with TLS: then nothing goes over a network that is not encrypted; or
        ``outcore:/PATH`` of its UNIX socket on this machine. A pool may be connected to several
        times: these are to each other as two processes are. What is opened in one is of no use when
        that is closed; the others go on.
    key
        File with the pool's key, or with yours; by default what the variable ``OUTCORE_KEY``
        names. Over a UNIX socket none is needed.

    Returns
    -------
    Pool

    Raises
    ------
    InvalidError
        If `url` is no address of a pool.
    NotFoundError
        If there is no such key file.
    DiskError
        If nobody answers.
    DeniedError
        If the key is another pool's, or there is none.
    """
    file = os.environ.get("OUTCORE_KEY") if key is None else os.fspath(key)
    if found := _SERVED.fullmatch(url):
        way = "tls" if found[1] == "outcore+tls" else "tcp"
        address, name = f"{way}:{found[2]}", f"{found[1]}://{found[2]}/"
    elif found := _SOCKET.fullmatch(url):
        address, name = f"unix:{found[1]}", f"outcore:{found[1]}::"
    else:
        raise InvalidError(
            f"{url!r} is no address of a pool; write outcore://HOST:PORT, outcore+tls://HOST:PORT, "
            "or outcore:/PATH of a UNIX socket"
        )
    return Pool(_core.Pool.connect([address], file), name, is_shared=True, key=file)
