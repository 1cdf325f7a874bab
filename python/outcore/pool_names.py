"""What is done with names in a pool: files and directories in it, and what is known of them."""

from collections.abc import Iterator
from typing import Any

from outcore.errors import ExistsError, InvalidError
from outcore.hints import hints_of, mode_bits, modified_ns_of
from outcore.pool_file import PoolFile
from outcore.pool_path import PoolPath, PoolRoot
from outcore.pool_stat import PoolStat


class PoolNames:
    """The names in a pool: what a `Pool` does with files and directories.

    Parameters
    ----------
    root
        Of the pool.
    """

    def __init__(self, root: PoolRoot) -> None:
        self._root = root

    def __truediv__(self, name: str) -> PoolPath:
        return PoolPath(self._root, name)

    def open(
        self,
        path: str | PoolPath,
        mode: str = "r",
        hints: dict[str, Any] | None = None,
        *,
        permissions: int = 0o666,
    ) -> PoolFile:
        """Open a file of bytes.

        Parameters
        ----------
        path
            A name in the pool.
        mode
            ``"r"`` to read; ``"r+"`` to read and write what is there; ``"w"`` to begin anew;
            ``"a"`` to append: each ``write`` goes to the end, wherever the position is, and what
            names its place goes there; ``"x"`` for a file that must not be there yet. All but the
            first also read, whether there is a ``"+"`` or not. A ``"b"`` is allowed: there is no
            text mode.
        hints
            How a new file is laid out: ``stripe_unit_bytes``, ``stripe_count`` and ``base`` (the
            first server), or what MPI calls them, ``striping_unit``, ``striping_factor`` and
            ``start_iodevice``. With ``round_units``, only so many stripe units go round the
            servers, and what follows them lies on the last one. Others are kept, and ignored.
        permissions
            The mode of a new file, as `os.open` takes it: without the bits of the umask.

        Returns
        -------
        PoolFile

        Raises
        ------
        NotFoundError, ExistsError
            If the file is not there, or is there already (``"x"``).
        InvalidError
            For another mode, hints that cannot be, or a directory.
        DeniedError
            If the user may not read or write it.
        """
        return self._at(path).open(mode, hints, permissions=permissions)

    def ls(self, path: str | PoolPath = "") -> list[str]:
        """List the names in a directory, sorted.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        return [name for name, _ in self._root.core.names(self._at(path).inside)]

    def stat(self, path: str | PoolPath) -> PoolStat:
        """Tell what a name is.

        Raises
        ------
        NotFoundError
            If there is nothing of this name.
        """
        return self._at(path).stat()

    def scandir(self, path: str | PoolPath = "") -> Iterator[tuple[PoolPath, PoolStat]]:
        """Yield what is in a directory, sorted by name, with what `stat` tells of each.

        They come in pages of a thousand, each one question to the manager and one to each server.
        """
        return self._at(path).scandir()

    def exists(self, path: str | PoolPath) -> bool:
        """Whether there is something of this name."""
        return self._at(path).exists()

    def mkdir(
        self,
        path: str | PoolPath,
        *,
        mode: int = 0o777,
        exist_ok: bool = False,
        hints: dict[str, Any] | None = None,
    ) -> None:
        """Make a directory, and those above it.

        Parameters
        ----------
        path
            Its name.
        mode
            Its permission bits, as `os.mkdir` takes them: without those of the umask. Directories
            above it that are made get them too, and are searched by who may read them.
        exist_ok
            Whether it may be there already.
        hints
            How new files in it, and in directories below it, are laid out where nobody says
            otherwise; see `open`. A directory that is there gets them too.

        Raises
        ------
        ExistsError
            If there is something of this name, unless it is a directory and may be.
        """
        where = self._at(path)
        layout = None if hints is None else hints_of(hints)
        if not where.exists():
            self._root.core.make_directory(where.inside, mode_bits(mode))
        elif not exist_ok or not where.is_dir():
            raise ExistsError(f"{where} exists; choose another name")
        if layout is not None:
            self._root.core.set_default_layout(where.inside, **layout)

    def rm(self, path: str | PoolPath, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive`, one with all that it holds.

        Raises
        ------
        NotFoundError
            If there is nothing of this name.
        InvalidError
            If a directory is not empty.
        """
        where = self._at(path)
        if not where.inside:
            raise InvalidError("the root of a pool cannot be removed; name what is in it")
        if recursive:
            self._root.volume.remove(where.inside)
            return
        try:
            self._root.core.remove_one(where.inside)
        except ExistsError:
            raise InvalidError(
                f"{where} is not empty; pass recursive=True to remove what it holds"
            ) from None

    def mv(self, old: str | PoolPath, new: str | PoolPath) -> None:
        """Rename a file or directory.

        A file of the new name is replaced at once by a file, an empty directory by a directory.

        Raises
        ------
        NotFoundError
            If there is nothing of the old name.
        ExistsError
            If there is something else of the new name.
        """
        self._root.volume.rename(self._at(old).inside, self._at(new).inside)

    def chmod(self, path: str | PoolPath, mode: int) -> None:
        """Set the permission bits, 0o1777 at most.

        Raises
        ------
        DeniedError
            If the user is neither the owner nor has the pool's key.
        """
        self._set(path, mode=mode)

    def chown(
        self, path: str | PoolPath, owner: int | None = None, group: int | None = None
    ) -> None:
        """Set the owner and the group, by number; `None` or -1 leaves what is there.

        Raises
        ------
        DeniedError
            As POSIX has it: an owner gives files to groups that it is a member of, and only who
            has the pool's key gives them to other users.
        """
        kept = (None, -1)
        self._set(
            path, owner=None if owner in kept else owner, group=None if group in kept else group
        )

    def utime(
        self,
        path: str | PoolPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
    ) -> None:
        """Set the time of the last change of content, as `os.utime` does.

        Parameters
        ----------
        path
            A name in the pool.
        times, ns
            Times of the last read and of the last change, since 1970, in seconds or in
            nanoseconds. A pool does not keep the first. By default it is now.

        Raises
        ------
        InvalidError
            If the time is before 1970, or after 2262-04-11T23:47:16Z.
        DeniedError
            If the user is neither the owner nor has the pool's key; now may be set by who may
            write, too.
        """
        if times is None and ns is None:
            self._root.core.touch(self._at(path).inside)
            return
        self._set(path, modified_ns=modified_ns_of(times, ns))

    def _set(self, path: str | PoolPath, **attributes: int | None) -> None:
        try:
            self._root.core.set_attributes(self._at(path).inside, **attributes)
        except (OverflowError, TypeError):
            raise InvalidError(
                "modes, owners, groups and times are integers of at least 0 that fit, have "
                f"{attributes}"
            ) from None

    def getxattr(self, path: str | PoolPath, name: str) -> bytes:
        """Return an extended attribute.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        return self._root.core.extended(self._at(path).inside, name)

    def setxattr(self, path: str | PoolPath, name: str, value: bytes) -> None:
        """Set an extended attribute: 64 KiB at most, of 256 at most on a file or directory.

        Their names are any text of up to 255 bytes. Names that begin with ``hint.`` are those of
        hints which nobody here knew when the file was made.
        """
        self._root.core.set_extended(self._at(path).inside, name, bytes(value))

    def listxattr(self, path: str | PoolPath) -> list[str]:
        """List the names of the extended attributes, sorted."""
        return self._root.core.extended_names(self._at(path).inside)

    def removexattr(self, path: str | PoolPath, name: str) -> None:
        """Remove an extended attribute.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        self._root.core.set_extended(self._at(path).inside, name)

    def set_layout(self, path: str | PoolPath, hints: dict[str, Any]) -> None:
        """Set how files that are made below a directory are laid out, where their hints don't say.

        The hints are those of `open`. They take the place of those that the directory had.
        """
        sorted_hints = hints_of(hints)
        self._root.core.set_default_layout(self._at(path).inside, **sorted_hints)

    def _at(self, path: str | PoolPath) -> PoolPath:
        if not isinstance(path, PoolPath):
            return PoolPath(self._root, path)
        if not path.root.is_alike(self._root):
            raise InvalidError(f"{path} is a name in another pool")
        return PoolPath(self._root, path.inside)
