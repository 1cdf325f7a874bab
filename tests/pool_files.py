"""The files of a pool's servers, and functions that damage them."""

from pathlib import Path


def data_files(directory: Path) -> list[Path]:
    """Return the data files of a server, in the order of their handles."""
    return sorted(
        (path for path in directory.glob("data/*/*") if not path.suffix),
        key=lambda path: path.name,
    )


def sums_of(path: Path) -> Path:
    """Return the checksum file of a data file. Its checksums begin at byte 4096."""
    return path.with_name(path.name + ".sealed")


def with_handle(directory: Path, handle: int) -> Path:
    """Return the path of a handle's data file on a server."""
    return directory / "data" / f"{handle & 0xFF:02x}" / f"{handle:016x}"


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)
