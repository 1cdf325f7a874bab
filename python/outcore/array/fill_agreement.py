"""The check that all processes of a creation have the same arguments."""

from collections.abc import Mapping
from typing import Any

from outcore.array.fill_identity import FillIdentity
from outcore.layout.zarr_format import Metadata
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import Place


def agree_on_creation(
    where: Place,
    metadata: Metadata,
    identity: FillIdentity | None,
    sharing: Sharing,
    arguments: Mapping[str, Any],
) -> None:
    """Check that all processes create the same array in the same way.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or `fill`, or no MPI for
        several threads.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi("an assembly by several processes")
    m = metadata
    sharing.agree(
        {
            "path": where.source, "shape": m.shape, "dtype": m.dtype.str, "chunks": m.chunks,
            "order": m.order, "chunk_order": m.chunk_order, "dims": m.dims,
            "attributes": m.attributes, "layout": m.to_json(), "fill=": identity is not None,
            **arguments,
        }
    )  # fmt: skip
    if identity is not None:
        source = (identity.fill_source or "").encode()
        sharing.agree({"fill_id=": identity.fill_id, "source text of fill": source})
