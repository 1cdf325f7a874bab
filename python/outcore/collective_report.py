"""What a process did in a collective."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WithServer = tuple[int, int, int, int]
"""Messages, shares, bytes of them, bytes of those that were copied: of a process and a server."""


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
    messages
        By number of the server, those that move the array: exactly as ``oc.plan`` says.
    shares
        How many of the messages had bytes of the array.
    """

    verb: str
    seconds: float
    bytes_moved: int
    copied_bytes: int
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
        shares = nbytes = copied = 0
        for servers, found in exchanged:
            for server, each in zip(servers, found, strict=True):
                messages[server] = messages.get(server, 0) + each[0]
                shares, nbytes, copied = shares + each[1], nbytes + each[2], copied + each[3]
        return cls(verb, seconds, nbytes, copied, messages, shares)
