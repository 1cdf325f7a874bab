"""Identify assemblies by the caller's ``fill_id`` and by the source text of ``fill``."""

import functools
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from outcore.array.existing import refuse_other
from outcore.array_files.blocks_done import BlocksDone
from outcore.errors import ExistsError, FillChangedWarning, InvalidError, JournalError
from outcore.layout.attributes import plain_attributes
from outcore.storage.volumes import Place


class FillIdentity(NamedTuple):
    """Identity of an assembly: the caller's `fill_id`, and a digest of the code.

    Attributes
    ----------
    fill_id
        The JSON value that the caller passed.
    fill_source
        Digest of the source text of `fill`; `None` if Python does not have the source.
    array
        Position among several arrays, as "2 of 3"; `None` if `fill` makes only one.
    """

    fill_id: Any
    fill_source: str | None
    array: str | None = None

    @classmethod
    def of(cls, fill: Callable[..., Any], fill_id: Any, array: str | None = None) -> "FillIdentity":
        """Identify an assembly.

        Raises
        ------
        InvalidError
            If JSON cannot hold `fill_id` unchanged, or `fill` is not a function.
        """
        if not callable(fill):
            raise InvalidError(f"fill must be a function such as fill(rows, cols), have {fill!r}")
        return cls(plain_attributes({"fill_id": fill_id})["fill_id"], _source_of(fill), array)

    def line(self) -> bytes:
        """Encode the identity as the first line of a record."""
        return json.dumps(self._values()).encode() + b"\n"

    def made(self) -> dict[str, Any]:
        """Return the entry in a whole array's metadata that describes how it was made."""
        return {"call": "create_array", **self._values()}

    def _values(self) -> dict[str, Any]:
        values = self._asdict()
        if self.array is None:
            del values["array"]
        return values

    def check_resumed(self, record: BlocksDone) -> None:
        """Compare the identity with that of the stopped assembly that left a record.

        Raises
        ------
        JournalError
            If it had another `fill_id`, or the record is damaged.

        Warns
        -----
        FillChangedWarning
            If the source text of `fill` differs.
        """
        try:
            was = FillIdentity(**json.loads(record.lines()[0]))
        except (ValueError, TypeError):
            raise record.damaged() from None
        if was.fill_id != self.fill_id:
            raise JournalError(
                f"{record.where.path} holds an assembly that was stopped with fill_id="
                f"{was.fill_id!r}, this call has fill_id={self.fill_id!r}; pass the same, or "
                "if_exists='overwrite' to restart"
            )
        if was.array != self.array:
            raise JournalError(
                f"{record.where.path} holds an assembly that was stopped as array {was.array}, "
                f"this call makes it as {self.array}; pass the same paths, or "
                "if_exists='overwrite' to restart"
            )
        self._warn_if_changed(record.where, was.fill_source, stacklevel=7)

    def check_opened(
        self, where: Place, made: dict[str, Any] | None, *, stacklevel: int = 4
    ) -> None:
        """Compare the identity with that of the assembly that made a whole array.

        `stacklevel` leads from the warning to the user's call.

        Raises
        ------
        ExistsError
            If it had another `fill_id`, or the array was not assembled.

        Warns
        -----
        FillChangedWarning
            If the source text of `fill` differs.
        """
        was = made or {}
        if was.get("call") != "create_array":
            raise ExistsError(
                f"{where.path} exists and was not assembled by fill; choose another name, or pass "
                "if_exists='overwrite'"
            )
        refuse_other(where, was.get("fill_id"), self.fill_id, "fill_id")
        refuse_other(where, was.get("array"), self.array, "place among the paths")
        self._warn_if_changed(where, was.get("fill_source"), stacklevel=stacklevel)

    def _warn_if_changed(self, where: Place, was: str | None, *, stacklevel: int) -> None:
        if was is not None and self.fill_source is not None and was != self.fill_source:
            warnings.warn(
                f"the source text of fill has changed since the assembly of {where.path} began, "
                "so blocks may differ; pass if_exists='overwrite' to restart",
                FillChangedWarning,
                stacklevel=stacklevel,
            )


def _source_of(fill: Callable[..., Any]) -> str | None:
    """Return a digest of the source text of a function, or of the class of another callable."""
    while isinstance(fill, functools.partial):
        fill = fill.func
    is_function = inspect.isroutine(fill) or inspect.isclass(fill)
    try:
        text = inspect.getsource(fill if is_function else type(fill))
    except (OSError, TypeError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
