"""Facts that all processes of a collective must share: rank 0 states them, the others compare."""

from dataclasses import dataclass

from outcore._core import crc32c
from outcore.array_files.stored_array import NewArray, StoredArray
from outcore.errors import InvalidError


@dataclass(frozen=True)
class Agreement:
    """The facts of one collective that rank 0 sends to the others.

    Attributes
    ----------
    pool, url, name, layout, schema
        The array, and its layout on disk and in memory. With the URL, a process whose array is in
        another pool connects to this pool to report the mismatch.
    files, servers
        Names of the shard files to transfer, and numbers of the servers of each file.
    numbers
        Number of the collective of each file, and of the two meetings at the beginning and the end.
    is_atomic, skips_disk, timeout_s
        Arguments of the call.
    is_fresh
        Whether the files are new ones, which replace those of the array at the end.
    is_marked
        Whether the array is marked incomplete during the write.
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
        """Whether all processes meet before the first file is written, and after the last."""
        return self.is_fresh or self.is_marked

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers in the order in which each process uses them."""
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
        """Compare the agreement with the arguments of another process.

        Raises
        ------
        InvalidError
            If they differ.
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
                    "arguments everywhere, on an array that is opened again"
                )


def layout_of(array: StoredArray | NewArray) -> bytes:
    """Describe the array's layout on disk; different layouts have different descriptions."""
    grid = array.metadata.grid()
    return repr((array.shape, array.dtype.str, array.chunks, array.order)).encode() + crc32c(
        grid.index()
    ).to_bytes(4)
