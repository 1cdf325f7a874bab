"""Report on a permutation of an array."""

from dataclasses import dataclass

from outcore._util.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class PermuteReport:
    """Result and cost of a permutation. Sizes in bytes.

    Attributes
    ----------
    path, kind, shape, dtype
        The new array, and the permutation.
    passes
        Number of passes: how often each element was read and written.
    load_bytes, request_bytes
        Elements that are permuted in memory at a time, and the smallest part of a run in one chunk,
        which is a request.
    bytes_read, bytes_written, reads, writes
        Bytes of this call, and its requests. Sources that are no arrays of outcore count each box
        as a read.
    requests_before
        Number of blocks that an earlier, stopped call had made durable: runs of a move by bits, or
        boxes of a copy box by box. A block takes one request or several.
    nbytes, file_bytes
        Bytes of the elements, and bytes that the new array occupies on disk.
    seconds, memory_bytes, peak_memory_bytes
        Time, budget, and the budget's peak use.
    pass_seconds
        Time of each pass of this call, until its elements were durable.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    passes: int
    load_bytes: int
    request_bytes: int
    bytes_read: int
    bytes_written: int
    reads: int
    writes: int
    requests_before: int
    nbytes: int
    file_bytes: int
    seconds: float
    memory_bytes: int
    peak_memory_bytes: int
    pass_seconds: tuple[float, ...]

    def __str__(self) -> str:
        extents = " x ".join(map(str, self.shape))
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        again = f", resumed after {self.requests_before} blocks" if self.requests_before else ""
        return (
            f"{self.path}: {self.kind}, {extents} {self.dtype}, {format_bytes(self.nbytes)} in "
            f"{passes} and {format_seconds(self.seconds)}{again}"
        )
