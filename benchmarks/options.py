"""The common options of all benchmarks."""

import argparse

SIZES = ("full", "quick", "tiny")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="full sizes: the default")
    size.add_argument("--quick", action="store_true", help="small sizes, about a minute each")
    size.add_argument("--tiny", action="store_true", help="sizes that only show that it runs")
    parser.add_argument(
        "--output", default="bench-out", metavar="DIR", help="where results go (%(default)s)"
    )
    parser.add_argument("--scratch", metavar="DIR", help="on the disk to measure (--output)")
    parser.add_argument(
        "--keep-env", action="store_true", help="leave OPENBLAS_* variables as they are"
    )


def size_of(given: argparse.Namespace) -> str:
    """Return the size of `SIZES` on the command line."""
    return next((size for size in SIZES if getattr(given, size)), SIZES[0])
