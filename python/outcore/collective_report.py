"""What a process did in a collective."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WithServer = tuple[int, int, int, int, int]
"""Messages, shares in them, bytes of all shares; bytes of those that were copied, and of those that
the server read from memory: of a process and a server."""


@dataclass(frozen=True)
class CollectiveReport:
    """What this process did in a collective.

    Attributes
    ----------
    verb
        ``"write_all"`` or ``"read_all"``.
    seconds
        Time of the call.
    bytes_moved, copied_bytes
        Bytes given to servers or taken from them; those of them that were copied in memory on the
        way, since they lie there in short runs.
    direct_bytes
        Those of the bytes moved that servers on this machine read from the memory of this process
        by themselves, without messages; see `outcore.collective_memory.DIRECT_MEMORY_VARIABLE`.
    messages
        Of the collective, by number of the server: exactly as ``oc.plan`` says.
    shares
        How many of the messages had bytes of the array.
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
        """Sum up what was exchanged: of each file its servers, and what went to and from them."""
        messages: dict[int, int] = {}
        shares = nbytes = copied = direct = 0
        for servers, found in exchanged:
            for server, each in zip(servers, found, strict=True):
                messages[server] = messages.get(server, 0) + each[0]
                shares, nbytes = shares + each[1], nbytes + each[2]
                copied, direct = copied + each[3], direct + each[4]
        return cls(verb, seconds, nbytes, copied, direct, messages, shares)
