"""The I/O servers on which the panels of factors lie, and the processes that read panels.

In a pool that the processes of a call serve (`Pool.from_comm`), a process reads the panels on its
own server without the network. The directories of such a pool may come to other ranks in each job.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from outcore._core import Grid
from outcore.linalg._factors.remote import RemoteBytes
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._output.factor import CholeskyFactor, Kind, LUFactor, tile_grid
from outcore.processes.team import Team
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place, place


class PanelServers:
    """The panels of a file of factors, and the I/O server on which each lies.

    Parameters
    ----------
    where, kind
        The factors.
    grid
        Their tiles.
    tile_bytes
        Bytes of a tile, without padding.
    """

    def __init__(self, where: Place, kind: Kind, grid: Grid, tile_bytes: int) -> None:
        self._grid, self._tile_bytes = grid, tile_bytes
        self._bytes = RemoteBytes(where.path / kind.array / grid.shard_key(0))

    def remote_bytes(self, panel: int, tiles: Iterable[int]) -> int:
        """Return the bytes of some tiles of a panel on I/O servers of other processes."""
        first = self._grid.locate([0, panel])[1]
        slot_bytes = self._grid.slot_bytes
        return sum(self._bytes.of(first + tile * slot_bytes, self._tile_bytes) for tile in tiles)

    def servers(self) -> list[int | None]:
        """Return the server of each panel; `None` if it lies on several, or in no pool."""
        tiles, panels = self._grid.counts
        panel_bytes = tiles * self._grid.slot_bytes
        return [
            self._bytes.server(self._grid.locate([0, panel])[1], panel_bytes)
            for panel in range(panels)
        ]


def dealing_order(g: Geometry, where: Place, kind: Kind, team: Team) -> tuple[int, ...]:
    """Return the order of the ranks in which a square matrix is dealt to them."""
    if team.size == 1:
        return ()
    tile, places = (g.rows, g.columns), range(g.panels)
    grid = tile_grid(g.n, g.dtype, tile, places, where.volume.slot_align_bytes)
    return turns_of(PanelServers(where, kind, grid, g.tile_bytes).servers(), _own(where, team))


def _own(where: Place, team: Team) -> list[int | None]:
    """Return the number of each process's own I/O server in the pool of a place."""
    path = where.path
    return team.all_of(path.root.own_server if isinstance(path, PoolPath) else None)


def turns_of(servers: Sequence[int | None], own: Sequence[int | None]) -> tuple[int, ...]:
    """Return the order of the ranks in which a factorization deals panels to them.

    Parameters
    ----------
    servers
        Server of each panel. They repeat in turn.
    own
        Own server of each rank. Ranks without panels on it take the turns that are left.
    """
    turns: list[int | None] = []
    for server in [*servers, *[None] * len(own)][: len(own)]:
        here = (
            rank
            for rank, each in enumerate(own)
            if server is not None and each == server and rank not in turns
        )
        turns.append(next(here, None))
    left = (rank for rank in range(len(own)) if rank not in turns)
    return tuple(next(left) if rank is None else rank for rank in turns)


def readers_of(servers: Sequence[int | None], own: Sequence[int | None]) -> tuple[int, ...]:
    """Return the rank that reads each panel: one on whose own server it lies, else in turn.

    Ranks with the same server take turns.
    """
    ranks: defaultdict[int | None, list[int]] = defaultdict(list)
    for rank, server in enumerate(own):
        ranks[server].append(rank)
    readers = []
    for panel, server in enumerate(servers):
        here = ranks[server] if server is not None else []
        if here:
            here.append(here.pop(0))
        readers.append(here[-1] if here else panel % len(own))
    return tuple(readers)


class Parts:
    """The panels of existing factors that each process of a solve reads.

    Attributes
    ----------
    readers
        The rank that reads each panel.
    """

    def __init__(self, factor: LUFactor | CholeskyFactor, team: Team) -> None:
        panels = len(factor.places)
        self._rank, self._places = team.rank, factor.places
        self._servers: PanelServers | None = None
        self.readers: tuple[int, ...] = (0,) * panels
        if team.size > 1:
            where, (rows, columns) = place(factor.path), factor.tile
            tile_bytes = rows * columns * factor.dtype.itemsize
            grid = tile_grid(
                factor.n, factor.dtype, factor.tile, range(max(factor.places) + 1),
                factor.slot_align_bytes,
            )  # fmt: skip
            self._servers = PanelServers(where, factor.kind, grid, tile_bytes)
            servers = self._servers.servers()
            self.readers = readers_of([servers[at] for at in factor.places], _own(where, team))

    def own(self) -> list[int]:
        """Return the panels that this process reads."""
        return [panel for panel, rank in enumerate(self.readers) if rank == self._rank]

    def remote_bytes(self, panel: int, tiles: Iterable[int]) -> int:
        """Return the bytes of some tiles of a panel on I/O servers of other processes."""
        return self._servers.remote_bytes(self._places[panel], tiles) if self._servers else 0
