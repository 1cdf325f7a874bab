"""Report on a copy of an array."""

import dataclasses
from dataclasses import dataclass

from outcore._util.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class CopyReport:
    """Result and cost of a copy. Sizes in bytes.

    Attributes
    ----------
    path, format, shape, dtype, order, chunks, codec
        The copy; ``chunks`` is `None` for a plain file.
    nbytes, file_bytes
        Bytes of its elements, and bytes that it occupies on disk.
    blocks, blocks_before, times_read
        Number of blocks; number of them that an earlier, stopped call had copied; average number of
        reads or decodings of a source element, which is 1.0 unless memory was short.
    seconds, memory_bytes, peak_memory_bytes
        Time, budget, and the budget's peak use by blocks and bounce buffers.
    between
        For a copy in several passes: chunk shapes of the arrays between them. The other figures are
        those of this call; blocks are those of the last pass.
    bytes_read, reads, bytes_written, writes
        Bytes and requests of arrays in outcore's own layout, in all passes; `None` if a source or
        the copy is in another format.
    pass_seconds
        Time of each pass of this call.
    verified
        Whether the copy was read back, and has the checksums of the blocks that were read. Arrays
        of outcore count these reads too.
    """

    path: str
    format: str
    shape: tuple[int, ...]
    dtype: str
    order: str
    chunks: tuple[int, ...] | None
    codec: str
    nbytes: int
    file_bytes: int
    blocks: int
    blocks_before: int
    times_read: float
    seconds: float
    memory_bytes: int
    peak_memory_bytes: int
    between: tuple[tuple[int, ...], ...] = ()
    bytes_read: int | None = None
    reads: int | None = None
    bytes_written: int | None = None
    writes: int | None = None
    pass_seconds: tuple[float, ...] = ()
    verified: bool = False

    def after(self, earlier: "CopyReport") -> "CopyReport":
        """Return the report on this pass and an earlier one."""
        return dataclasses.replace(
            self,
            times_read=earlier.times_read,
            seconds=earlier.seconds + self.seconds,
            pass_seconds=earlier.pass_seconds + self.pass_seconds,
            peak_memory_bytes=max(earlier.peak_memory_bytes, self.peak_memory_bytes),
            bytes_read=_sum(self.bytes_read, earlier.bytes_read),
            reads=_sum(self.reads, earlier.reads),
            bytes_written=_sum(self.bytes_written, earlier.bytes_written),
            writes=_sum(self.writes, earlier.writes),
        )

    def __str__(self) -> str:
        extents = " x ".join(map(str, self.shape))
        chunks = "" if self.chunks is None else f", chunks {' x '.join(map(str, self.chunks))}"
        codec = "" if self.codec == "none" else f", {self.codec}"
        again = "" if self.times_read == 1 else f", elements read {self.times_read:.2f} times"
        if self.between:
            through = " and ".join(" x ".join(map(str, each)) for each in self.between)
            again += f", in {1 + len(self.between)} passes through chunks of {through}"
        if self.verified:
            again += ", verified"
        if self.blocks_before:
            again += f", resumed at block {self.blocks_before} of {self.blocks}"
        return (
            f"{self.path}: {self.format}, {extents} {self.dtype} in {self.order} order{chunks}"
            f"{codec}, {format_bytes(self.file_bytes)} in {format_seconds(self.seconds)}{again}"
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
