"""Choose the targets of a copy or a move, and refuse those that are never replaced."""

from outcore.errors import ExistsError, InvalidError, NotFoundError
from outcore.files import catalog
from outcore.storage.file_status import status_of
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, as_path, without_links


def targets_of(
    sources: list[AnyPath], given: PathLike, *, several: bool
) -> list[tuple[AnyPath, AnyPath]]:
    """Map each source to its target: below an existing directory, or the target itself.

    Arrays and factors are directories too, but are never a place for other files.
    """
    if not sources:
        return []
    target = as_path(given)
    if target.is_dir() and not _is_one_thing(target):
        if unnamed := [source for source in sources if not source.name]:
            raise InvalidError(f"{unnamed[0]} has no name of its own; name a new target for it")
        return [(source, target / source.name) for source in sources]
    if several or len(sources) != 1:
        raise InvalidError(f"need a directory for {len(sources)} sources, {target} is none")
    is_named_one = isinstance(given, str) and given.endswith("/")
    if is_named_one and not target.is_dir() and not status_of(sources[0], follow=True).is_directory:
        raise NotFoundError(
            f"there is no directory {target}; make it first, or leave out the slash at the end"
        )
    return [(sources[0], target)]


def refuse_just_made(target: AnyPath, source: AnyPath, made: set[AnyPath]) -> None:
    """Refuse to replace the copy of an earlier source of the same call, as GNU ``cp`` does.

    Raises
    ------
    ExistsError
        If the target is in `made`.
    """
    if target in made:
        raise ExistsError(
            f"{target} was made by this very call, so {source} does not replace it; name another "
            f"target for {source}"
        )


def refuse_special(target: AnyPath) -> None:
    """Refuse to replace a device, or anything else but a file, a directory or a link."""
    if status_of(target).kind == "other":
        raise ExistsError(
            f"{target} is a device, a socket or the like, which is not replaced; choose another "
            "name"
        )


def is_whole_by_itself(path: AnyPath) -> bool:
    """Whether a directory is an array, a factor or a group."""
    entry = catalog.recognise(path)
    return entry is not None and entry.kind in ("array", "factor", "group")


def _is_one_thing(path: AnyPath) -> bool:
    if isinstance(path, PoolPath) and not path.inside:
        return False
    entry = catalog.recognise(without_links(path))
    return entry is not None and entry.kind in ("array", "factor")
