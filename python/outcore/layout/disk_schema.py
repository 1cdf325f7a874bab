"""Disk schemas: the division of an array into blocks, each of which lies whole on one disk.

Source: Seamons et al. 1995, sections 2 and 3.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outcore.errors import InvalidError
from outcore.layout.distribution import Distribution, Rules, distribute, parse_rules

NATURAL = "natural"
TRADITIONAL = "traditional"

MemorySchema = Rules | Distribution
"""Distribution of an array over processes that have one block each."""


@dataclass(frozen=True)
class DiskSchema:
    """Division of an array over disks.

    Attributes
    ----------
    name : str
        ``"natural"``, ``"traditional"``, or the distribution itself.
    distribution : str
        Rule of each dimension: ``"block"``, ``"cyclic(K)"`` or ``"*"``.
    mesh : tuple of int
        Blocks along each dimension, and 1 for ``*``. For ``"natural"`` it is the mesh of the
        processes, otherwise that of the servers.
    """

    name: str
    distribution: str
    mesh: tuple[int, ...]

    def __str__(self) -> str:
        of_rules = zip(self.distribution.split(","), self.mesh, strict=True)
        mesh = " x ".join(str(count) for rule, count in of_rules if rule != "*")
        name = "" if self.name == self.distribution else f"{self.name}, which is "
        return f"{name}{self.distribution}" + (f" over {mesh}" if mesh else "")

    def to_json(self) -> dict[str, Any]:
        """Return the entry for ``zarr.json``."""
        return {**asdict(self), "mesh": list(self.mesh)}

    @classmethod
    def from_json(cls, document: dict[str, Any], shape: tuple[int, ...]) -> "DiskSchema":
        """Read the entry of ``zarr.json``; refuse one that does not fit the array."""
        found = distribute(shape, document["distribution"], document["mesh"])
        return cls(str(document["name"]), str(found), found.mesh)


def divide(
    shape: tuple[int, ...],
    schema: Rules,
    memory_schema: MemorySchema | None,
    mesh: Sequence[int] | int | None,
    servers: int | None,
) -> tuple[DiskSchema, Distribution]:
    """Divide an array over disks by the arguments of `create_array`.

    Parameters
    ----------
    shape
        Elements of the array along each dimension.
    schema, memory_schema, mesh
        See `create_array`.
    servers
        Number of I/O servers; `None` for a plain path.

    Raises
    ------
    InvalidError
        If the arguments form no schema of the array, or contradict each other.
    """
    word = schema.strip().lower() if isinstance(schema, str) else ""
    if word == NATURAL:
        found = _natural(shape, memory_schema, mesh)
        return DiskSchema(NATURAL, str(found), found.mesh), found
    if memory_schema is not None:
        raise InvalidError(
            f'memory_schema= says what disk_schema="natural" is, have {schema!r}; leave it out'
        )
    rules = _rules(schema, word, len(shape))
    found = distribute(shape, rules, _servers(rules, servers or 1) if mesh is None else mesh)
    _check(found, word, servers)
    return DiskSchema(word if word == TRADITIONAL else str(found), str(found), found.mesh), found


def _natural(
    shape: tuple[int, ...], schema: MemorySchema | None, mesh: Sequence[int] | int | None
) -> Distribution:
    if isinstance(schema, Distribution):
        if mesh is not None or schema.shape != shape:
            raise InvalidError(
                f"need a memory_schema= of an array of shape {shape} without mesh=, have one of "
                f"{schema.shape} over {schema.mesh} and mesh={mesh!r}"
            )
        found = schema
    elif mesh is None:
        raise InvalidError(
            'disk_schema="natural" needs the mesh of the processes, have none; '
            "pass mesh=, such as (2, 2, 2)"
        )
    else:
        found = distribute(shape, ("block",) * len(shape) if schema is None else schema, mesh)
    if any(rule.startswith("cyclic") for rule in found.rules):
        raise InvalidError(
            'disk_schema="natural" needs processes with one block each, have '
            f"{str(found)!r}; use block and *, or another disk_schema"
        )
    return found


def _rules(schema: Rules, word: str, dims: int) -> tuple[str, ...]:
    if word == TRADITIONAL:
        return ("block", *["*"] * (dims - 1))
    try:
        return parse_rules(schema)
    except InvalidError as error:
        raise InvalidError(
            f'a disk_schema is "natural", "traditional" or such as "block,*,*", have {schema!r}: '
            f"{error}"
        ) from None


def _servers(rules: tuple[str, ...], servers: int) -> tuple[int, ...]:
    """Return the default mesh of servers: all of them along the only distributed dimension."""
    distributed = sum(rule != "*" for rule in rules)
    if distributed > 1:
        raise InvalidError(
            f"need a mesh of servers for {','.join(rules)!r}, which distributes {distributed} "
            f"dimensions, have none; pass mesh=, such as {(2,) * distributed}"
        )
    return (servers,) * distributed


def _check(found: Distribution, word: str, servers: int | None) -> None:
    if any(rule.startswith("cyclic") for rule in found.rules):
        distributed = sum(rule != "*" for rule in found.rules)
        if distributed > 1:
            raise InvalidError(
                f"need one dimension at most that is distributed where one is cyclic, have "
                f"{str(found)!r} as a disk_schema; use block, or chunks= with chunk_order="
            )
    if word == TRADITIONAL and servers is not None and found.size > servers:
        raise InvalidError(
            f'disk_schema="traditional" needs a server for each of {found.size} parts, have '
            f"{servers}; leave mesh= out, or write block and * instead"
        )
