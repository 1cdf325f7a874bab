"""Report on a process's part in a collective."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WithServer = tuple[int, int, int, int, int]
"""Counts for one process and one server: messages; shares in them; bytes of all shares; copied
bytes; bytes that the server read from the process's memory."""


@dataclass(frozen=True)
class CollectiveReport:
    """Report on this process's part in a collective.

    Attributes
    ----------
    verb
        ``"write_all"`` or ``"read_all"``.
    seconds
        Time of the call.
    bytes_moved, copied_bytes
        Bytes exchanged with servers; the number of these that were copied in memory, because they
        lie there in short runs.
    direct_bytes
        Number of the moved bytes that servers on this machine read directly from this process's
        memory, without messages; ``OUTCORE_DIRECT_MEMORY=off`` forbids it.
    messages
        Messages by number of the server, exactly as predicted by ``oc.plan``.
    shares
        Number of the messages that contained bytes of the array.
    """

    verb: str
    seconds: float
    bytes_moved: int
    copied_bytes: int
    direct_bytes: int
    messages: dict[int, int]
    shares: int

    @classmethod
    def of(
        cls,
        verb: str,
        seconds: float,
        exchanged: Iterable[tuple[Sequence[int], Sequence[WithServer]]],
    ) -> "CollectiveReport":
        """Sum up the exchange: for each file its servers, and the counts of each server."""
        messages: dict[int, int] = {}
        shares = nbytes = copied = direct = 0
        for servers, found in exchanged:
            for server, each in zip(servers, found, strict=True):
                messages[server] = messages.get(server, 0) + each[0]
                shares, nbytes = shares + each[1], nbytes + each[2]
                copied, direct = copied + each[3], direct + each[4]
        return cls(verb, seconds, nbytes, copied, direct, messages, shares)
