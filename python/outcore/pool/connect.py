"""Names of served pools, and connections to them."""

import os

from outcore import _core
from outcore.pool.pool import Pool
from outcore.storage.pool_path import check_text
from outcore.storage.volumes import PathLike


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
    addresses, name = _core.parse_pool_url(check_text(url))
    core = _core.Pool.connect(addresses, file, patience_s=patience_s)
    return Pool(core, name, is_shared=True, key=file)
