"""What all processes of a collective must have the same: the first says it, the others compare."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outcore._core import crc32c
from outcore.errors import InvalidError

if TYPE_CHECKING:
    from outcore.array import Array


@dataclass(frozen=True)
class Agreement:
    """What rank 0 tells the others: the same call of all has these.

    Attributes
    ----------
    pool, url, name, layout, schema
        Which array it is, and how it lies on disk and in memory. By its URL a process that has an
        array in another pool finds this one, to tell the others.
    files, servers
        Names of the shard files that are moved, and numbers of the servers that each lies on.
    numbers
        Of the collective of each file, and of those in which all meet at the beginning and the end.
    is_atomic, skips_disk, timeout_s
        What was asked for.
    is_fresh
        Whether the files are new ones, which take the place of the array's at the end.
    is_marked
        Whether the array is incomplete while they are written.
    """

    verb: str
    pool: str
    url: str
    name: str
    layout: bytes
    schema: bytes
    files: tuple[str, ...]
    servers: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    is_atomic: bool
    skips_disk: bool
    is_fresh: bool
    is_marked: bool
    timeout_s: int

    @property
    def meets(self) -> bool:
        """Whether all meet before the first file is written, and after the last."""
        return self.is_fresh or self.is_marked

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers in the order in which each process comes to them."""
        files = self.numbers[:-2]
        return (self.numbers[-2], *files, self.numbers[-1]) if self.meets else files

    def check(
        self,
        rank: int,
        *,
        verb: str,
        is_atomic: bool,
        skips_disk: bool,
        timeout_s: int,
        name: str,
        layout: bytes,
        schema: bytes,
    ) -> None:
        """Compare it with what another process has.

        Raises
        ------
        InvalidError
            If that is not the same.
        """
        for what, have, need in (
            ("the call", verb, self.verb),
            ("atomic=", is_atomic, self.is_atomic),
            ("skip_disk=", skips_disk, self.skips_disk),
            ("the timeout", timeout_s, self.timeout_s),
            ("the array", name, self.name),
            ("how the array lies on disk", layout, self.layout),
            ("the memory schema", schema, self.schema),
        ):
            if have != need:
                text = "" if isinstance(have, bytes) else f": {have!r} and {need!r}"
                raise InvalidError(
                    f"processes {rank} and 0 do not agree on {what}{text}; call it with the same "
                    "arguments everywhere, on an array that is opened anew"
                )


def layout_of(array: "Array") -> bytes:
    """Describe how an array lies on disk: whoever has another description has another array."""
    grid = array.metadata.grid()
    return repr((array.shape, array.dtype.str, array.chunks, array.order)).encode() + crc32c(
        grid.index()
    ).to_bytes(4)
