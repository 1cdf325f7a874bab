"""Operations on names in a pool: its files and directories, and their attributes."""

from collections.abc import Iterator
from typing import Any

from outcore.errors import ExistsError, InvalidError
from outcore.layout.hints import hints_of, mode_bits, modified_ns_of
from outcore.pool.found import Found
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_root import PoolRoot
from outcore.storage.pool_stat import PoolStat


class PoolNames:
    """The names in a pool: the operations of a `Pool` on files and directories.

    Parameters
    ----------
    root
        The root of the pool.
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
            ``"r"`` to read; ``"r+"`` to read and write an existing file; ``"w"`` to truncate or
            create; ``"a"`` to append; ``"x"`` to create a file that must not exist. All but the
            first also read, with or without a ``"+"``. With ``"a"`` each ``write`` goes to the end,
            regardless of the position, and methods with an offset write at their offset. A ``"b"``
            is allowed: there is no text mode.
        hints
            Layout of a new file: ``stripe_unit_bytes``, ``stripe_count`` and ``base`` (the first
            server), or MPI's names for them, ``striping_unit``, ``striping_factor`` and
            ``start_iodevice``. With ``round_units``, only the first stripe units, of this number,
            go round the servers; the rest of the file lies on the last one. The pool stores and
            ignores other hints.
        permissions
            The mode of a new file, as in `os.open`: the umask is applied.

        Returns
        -------
        PoolFile

        Raises
        ------
        NotFoundError, ExistsError
            If the file does not exist, or exists already (``"x"``).
        InvalidError
            For an unknown mode, invalid hints, or a directory.
        DeniedError
            If the user may not read or write it.
        """
        return self._at(path).open(mode, hints, permissions=permissions)

    def ls(self, path: str | PoolPath = "") -> list[str]:
        """List the names in a directory, sorted.

        Raises
        ------
        NotFoundError
            If the directory does not exist.
        """
        return [name for name, _ in self._root.core.names(self._at(path).inside)]

    def stat(self, path: str | PoolPath, *, follow_symlinks: bool = True) -> PoolStat:
        """Return the attributes of a name, or of the target of a symbolic link.

        Raises
        ------
        NotFoundError
            If the name, or the target of a link, does not exist.
        LinkLoopError
            If the path leads through more than 40 links.
        """
        return self._at(path).stat(follow_symlinks=follow_symlinks)

    def lstat(self, path: str | PoolPath) -> PoolStat:
        """Return the attributes of a name; of a symbolic link those of the link itself."""
        return self._at(path).lstat()

    def symlink(self, target: str | PoolPath, path: str | PoolPath) -> None:
        """Create a symbolic link to a target, as `os.symlink` does.

        All methods follow links, except `lstat`, `readlink`, `rm` and `mv`. See
        `PoolPath.symlink_to` for the target.

        Raises
        ------
        ExistsError
            If the name exists.
        NotFoundError
            If its directory does not exist.
        InvalidError
            If no link can have the target.
        """
        self._at(path).symlink_to(target)

    def readlink(self, path: str | PoolPath) -> str:
        """Return the target of a symbolic link, as its creator wrote it.

        Raises
        ------
        NotFoundError
            If the name does not exist.
        InvalidError
            If it is no symbolic link.
        """
        return self._at(path).readlink()

    def scandir(self, path: str | PoolPath = "") -> Iterator[tuple[PoolPath, PoolStat]]:
        """Yield the entries of a directory, sorted by name, each with its `stat`.

        The entries arrive in pages of a thousand. Each page takes one request to the manager and
        one to each server.
        """
        return self._at(path).scandir()

    def find(self, path: str | PoolPath = "", where: str = "") -> list[Found]:
        """Search a directory and everything below it.

        Parameters
        ----------
        path
            The directory; by default the whole pool.
        where
            The query, such as ``'dtype = "c16" and shape[0] > 50000 and attr.run = "x12"'``; by
            default everything. See the guide :doc:`/how-to/find`.

        Returns
        -------
        list of Found
            Sorted by path, without names that the user may not list. A search that begins after a
            change sees it.

        Raises
        ------
        InvalidError
            If the query cannot be read, has an unknown field, or compares values of different
            types. The message says at which character.
        NotFoundError
            If the directory does not exist.
        DeniedError
            If the user may not list the directory.
        """
        inside = self._at("" if path == "/" else path).inside
        return [Found.of(self._root, *each) for each in self._root.core.find(inside, where)]

    def exists(self, path: str | PoolPath) -> bool:
        """Whether the name exists."""
        return self._at(path).exists()

    def mkdir(
        self,
        path: str | PoolPath,
        *,
        mode: int = 0o777,
        exist_ok: bool = False,
        hints: dict[str, Any] | None = None,
    ) -> None:
        """Create a directory, and its missing parents.

        Parameters
        ----------
        path
            Its name.
        mode
            Its permission bits, as in `os.mkdir`: the umask is applied. Missing parents get them
            too, plus search permission for everyone who may read.
        exist_ok
            Whether the directory may exist already.
        hints
            Default layout of new files in it, and in directories below it; see `open`. An existing
            directory gets them too.

        Raises
        ------
        ExistsError
            If the name exists, unless it is a directory and `exist_ok` is true.
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
        """Remove a file or an empty directory; with `recursive`, a directory and its contents.

        Raises
        ------
        NotFoundError
            If the name does not exist.
        InvalidError
            If a directory is not empty.
        """
        where = self._at(path)
        if not where.inside:
            raise InvalidError("the root of a pool cannot be removed; name files in it")
        if recursive:
            self._root.volume.remove(where.inside)
            return
        try:
            self._root.core.remove_one(where.inside)
        except ExistsError:
            raise InvalidError(
                f"{where} is not empty; pass recursive=True to remove its contents"
            ) from None

    def mv(self, old: str | PoolPath, new: str | PoolPath) -> None:
        """Rename a file or directory.

        A file atomically replaces a file of the new name; a directory replaces an empty directory.

        Raises
        ------
        NotFoundError
            If the old name does not exist.
        ExistsError
            If the new name exists, and the rename may not replace it.
        """
        self._root.volume.rename(self._at(old).inside, self._at(new).inside)

    def chmod(self, path: str | PoolPath, mode: int) -> None:
        """Set the permission bits, at most 0o1777; for a directory 0o3777.

        A directory with the set-group-ID bit 0o2000 gives its group to new names in it, and the bit
        itself to new directories. Users who are not in that group cannot set the bit.

        Raises
        ------
        DeniedError
            If the user is not the owner and lacks the pool's key.
        """
        self._set(path, mode=mode)

    def chown(
        self,
        path: str | PoolPath,
        owner: int | None = None,
        group: int | None = None,
        *,
        follow_symlinks: bool = True,
    ) -> None:
        """Set the owner and the group, by number; `None` or -1 keeps the present one.

        Raises
        ------
        DeniedError
            As in POSIX: an owner may give files only to groups of which it is a member, and giving
            them to other users needs the pool's key.
        """
        kept = (None, -1)
        self._set(
            path,
            owner=None if owner in kept else owner,
            group=None if group in kept else group,
            follow_symlinks=follow_symlinks,
        )

    def utime(
        self,
        path: str | PoolPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Set the time of the last change of content, as `os.utime` does.

        Parameters
        ----------
        path
            A name in the pool.
        times, ns
            Times of the last read and of the last change, since 1970, in seconds or in nanoseconds.
            A pool does not store the first. The default is the present time.

        Raises
        ------
        InvalidError
            If the time is before 1970, or after 2262-04-11T23:47:16Z.
        DeniedError
            If the user is not the owner and lacks the pool's key; users with write permission may
            set the present time, too.
        """
        if times is None and ns is None:
            self._root.core.touch(self._changed(path, follow_symlinks))
            return
        self._set(path, modified_ns=modified_ns_of(times, ns), follow_symlinks=follow_symlinks)

    def _changed(self, path: str | PoolPath, follow_symlinks: bool) -> str:
        """Return the name whose attributes a call changes."""
        inside = self._at(path).inside
        return self._root.core.follow(inside) if follow_symlinks else inside

    def _set(
        self, path: str | PoolPath, *, follow_symlinks: bool = True, **attributes: int | None
    ) -> None:
        inside = self._changed(path, follow_symlinks)
        try:
            self._root.core.set_attributes(inside, **attributes)
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
            If the attribute does not exist.
        """
        return self._root.core.extended(self._at(path).inside, name)

    def setxattr(self, path: str | PoolPath, name: str, value: bytes) -> None:
        """Set an extended attribute, of at most 64 KiB; a file or directory has at most 256.

        A name is any text of up to 255 bytes. Names with the prefix ``hint.`` are those of hints
        that the pool did not know when the file was created.
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
            If the attribute does not exist.
        """
        self._root.core.set_extended(self._at(path).inside, name)

    def set_layout(self, path: str | PoolPath, hints: dict[str, Any]) -> None:
        """Set the default layout of new files below a directory, which their own hints override.

        The hints are those of `open`. They replace the previous ones of the directory.
        """
        sorted_hints = hints_of(hints)
        self._root.core.set_default_layout(self._at(path).inside, **sorted_hints)

    def _at(self, path: str | PoolPath) -> PoolPath:
        if not isinstance(path, PoolPath):
            return PoolPath(self._root, path)
        if not path.root.is_alike(self._root):
            raise InvalidError(f"{path} is a name in another pool")
        return PoolPath(self._root, path.inside)
