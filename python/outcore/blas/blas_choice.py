"""Choose and describe the BLAS that SciPy runs on, and its kernels.

OpenBLAS picks its kernels once, while its library is loaded, from the
processor and from the environment variable ``OPENBLAS_CORETYPE``.  On AMD
processors with AVX-512 the right table is ``SkylakeX``: its double precision
matrix product runs at about 1.7 times the rate of the ``Haswell`` table's.
Releases up to 0.3.31 do not know every such processor by name.  They then
decide by its features, which selects ``SkylakeX`` on most computers, but not
on all.  `choose` sets the variable where that is safe.

It must run before SciPy's BLAS is loaded.  So this module imports nothing
that loads a BLAS, and the package imports this module first.
"""

import contextlib
import functools
import importlib.util
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import threadpoolctl  # type: ignore[import-untyped, unused-ignore]

from outcore.blas.exported import exported

CORETYPE_VARIABLE = "OPENBLAS_CORETYPE"
TIMEOUT_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
POLICY_VARIABLE = "OUTCORE_BLAS"
AVX512_CORETYPE = "SkylakeX"

SHORT_TIMEOUT = "18"
"""OpenBLAS's idle threads spin for 2 to this power clock ticks, 0.1 ms instead of 25 ms. Then they
leave their core to other threads, which move and scan blocks."""

# The SkylakeX kernels use these four features.  On a processor (or hypervisor)
# that lacks one of them, they would hit an illegal instruction.
_NEEDED_FLAGS = frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})

# Later releases rewrite a forced table's block sizes on AMD hosts (OpenBLAS
# issue 6021), and detect more processors: their own choice is safer.
_NEWEST_FORCED = (0, 3, 31)


@dataclass(frozen=True)
class BlasChoice:
    """Result of `choose`: the libraries that it found, its action, and the reason.

    Attributes
    ----------
    action : str
        ``"set"`` if `choose` set this process's ``OPENBLAS_CORETYPE``,
        ``"kept"`` if it left the variable unchanged.
    coretype : str or None
        The variable's value afterwards; None if it is not set.
    reason : str
        The reason, as one sentence for the user.
    vendor, model : str
        The processor, as ``/proc/cpuinfo`` names it; empty where unknown.
    avx512 : bool
        Whether the processor has all features that the AVX-512 kernels use.
    already_loaded : str or None
        SciPy's BLAS library, if it was loaded before the choice was made.
    version : str or None
        Version of the OpenBLAS that SciPy was built with, if SciPy records it.
    """

    action: str
    coretype: str | None
    reason: str
    vendor: str = ""
    model: str = ""
    avx512: bool = False
    already_loaded: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class BlasReport:
    """The BLAS that SciPy has loaded, according to its own description.

    Attributes
    ----------
    library : str
        Kind of library: ``"openblas"``, ``"mkl"``, ``"blis"``...
    path : str
        The file of the library.
    version : str or None
        Its version.
    architecture : str or None
        The kernel table in use, such as ``"SkylakeX"``.
    threads : int
        Number of threads of its next call.
    threading : str or None
        Its threading layer, such as ``"pthreads"`` or ``"openmp"``.
    """

    library: str
    path: str
    version: str | None
    architecture: str | None
    threads: int
    threading: str | None


def _read_cpu() -> tuple[str, str, frozenset[str]]:
    """Return vendor, model name and feature flags of the first processor listed."""
    found: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
            if not line.strip():  # end of the first processor
                break
    flags = frozenset(found.get("flags", "").split())
    return found.get("vendor_id", ""), found.get("model name", ""), flags


def _may_be_scipys(path: str) -> bool:
    """Whether SciPy could be using the library at `path`.

    Wheels carry their own libraries in ``<package>.libs`` (or ``.dylibs`` inside
    the package), which no other package uses.  NumPy's wheel has such a copy of
    OpenBLAS with nearly the same name as SciPy's, so the folder decides, not the
    file name.  A library elsewhere belongs to the system, and may serve SciPy too.
    """
    folder = Path(path).parent
    if folder.name.endswith(".libs"):
        return folder.name == "scipy.libs"
    if folder.name == ".dylibs":
        return folder.parent.name == "scipy"
    return True


def _loaded_openblas() -> str | None:
    """Return the path of a mapped OpenBLAS that may be SciPy's."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # address perms offset device inode path; the path may contain spaces
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) < 6 or "openblas" not in os.path.basename(fields[5]):
                continue
            if _may_be_scipys(fields[5]):
                return fields[5]
    return None


def _built_with() -> str | None:
    """Return the OpenBLAS version in SciPy's build record, without importing SciPy."""
    spec = importlib.util.find_spec("scipy")
    if spec is None or spec.origin is None:
        return None
    record = Path(spec.origin).with_name("__config__.py")
    if not record.is_file():
        return None
    found = re.search(
        r'"blas":\s*\{\s*"name":\s*"[^"]*openblas[^"]*".*?"version":\s*"([^"]+)"',
        record.read_text(encoding="utf-8", errors="replace"),
        re.DOTALL,
    )
    return found.group(1) if found else None


def _is_kept() -> bool:
    """Whether the user forbids changes of the environment."""
    return os.environ.get(POLICY_VARIABLE, "").strip().lower() == "keep"


def _decide() -> BlasChoice:
    """Do what `choose` does, but let exceptions pass."""
    before = os.environ.get(CORETYPE_VARIABLE) or None
    vendor, model, flags = _read_cpu()
    avx512 = flags >= _NEEDED_FLAGS
    version = _built_with()
    loaded = _loaded_openblas()

    def result(action: str, reason: str) -> BlasChoice:
        coretype = AVX512_CORETYPE if action == "set" else before
        return BlasChoice(action, coretype, reason, vendor, model, avx512, loaded, version)

    if _is_kept():
        return result("kept", f"{POLICY_VARIABLE}=keep asks for no change")
    if before is not None:
        return result("kept", f"{CORETYPE_VARIABLE} was set already")
    if vendor != "AuthenticAMD":
        return result("kept", "OpenBLAS's own choice is good on this processor")
    if not avx512:
        return result("kept", "the processor lacks AVX-512")
    if loaded is not None:
        return result("kept", "SciPy's BLAS was loaded before, and its kernels are fixed by then")
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    if numbers is None:
        return result("kept", "which OpenBLAS SciPy was built with is not known")
    if tuple(map(int, numbers.groups())) > _NEWEST_FORCED:
        return result("kept", f"OpenBLAS {version} is left to choose for itself")
    os.environ[CORETYPE_VARIABLE] = AVX512_CORETYPE
    return result("set", "an AMD processor with AVX-512, which OpenBLAS may not know by name")


@functools.cache
def choose() -> BlasChoice:
    """Set ``OPENBLAS_CORETYPE`` for this process where that is safe and useful.

    Also set ``OPENBLAS_THREAD_TIMEOUT`` if it has no value yet and ``OUTCORE_BLAS`` is not
    ``keep``.

    `choose` sets the core type only if all of this holds: the processor is from AMD and has AVX-512
    (F, DQ, BW and VL); the variable has no value yet; SciPy's BLAS is not loaded yet; SciPy was
    built with an OpenBLAS before 0.3.32; ``OUTCORE_BLAS`` is not ``keep``. Child processes inherit
    the variable, and it also applies to a NumPy imported later.

    Returns
    -------
    BlasChoice
        The finding and the action.  The first call decides; later calls return
        the same object.

    Notes
    -----
    Never raises: where it fails, SciPy works as without it.
    """
    if not _is_kept():
        os.environ.setdefault(TIMEOUT_VARIABLE, SHORT_TIMEOUT)
    try:
        return _decide()
    except Exception as error:  # no error may stop the import
        return BlasChoice(
            "kept",
            os.environ.get(CORETYPE_VARIABLE) or None,
            f"the processor could not be examined ({type(error).__name__}: {error})",
        )


@functools.cache
def _controller() -> Any | None:
    """Find the threadpoolctl controller of SciPy's BLAS, if there is one."""
    # Not at the top: it loads SciPy's BLAS, and `choose` must run before that.
    exported("cython_blas")
    found = [
        library
        for library in threadpoolctl.ThreadpoolController().lib_controllers
        if library.user_api == "blas" and _may_be_scipys(library.filepath)
    ]
    # SciPy's own copy first, then a system library.
    found.sort(key=lambda library: "scipy" not in Path(library.filepath).parent.name)
    return found[0] if found else None


def scipy_blas() -> BlasReport | None:
    """Describe the BLAS that SciPy uses; load it if necessary.

    Returns
    -------
    BlasReport or None
        None if the library cannot be queried, such as the reference BLAS.
    """
    library = _controller()
    if library is None:
        return None
    facts = library.info()
    return BlasReport(
        library=facts["internal_api"],
        path=facts["filepath"],
        version=facts.get("version"),
        architecture=facts.get("architecture"),
        threads=facts["num_threads"],
        threading=facts.get("threading_layer"),
    )


def in_use() -> tuple[str, int]:
    """Return the name of SciPy's BLAS, with version and kernels, and its current thread count.

    A library that does not describe itself is ``"unknown"`` and counts as one thread.
    """
    found = scipy_blas()
    if found is None:
        return "unknown", 1
    parts = (found.library, found.version, found.architecture)
    return " ".join(part for part in parts if part), found.threads


def set_threads(count: int) -> int | None:
    """Set the number of threads of SciPy's BLAS, for the whole process.

    A separate copy of the library in NumPy keeps its number.

    Parameters
    ----------
    count : int
        Number of threads, at least 1.

    Returns
    -------
    int or None
        The number before; None if SciPy's BLAS cannot be controlled, or not from
        this thread, and the number is unchanged.
    """
    if count < 1:
        raise ValueError(f"the number of BLAS threads must be at least 1, not {count}")
    library = _controller()
    if library is None:
        return None
    before = int(library.num_threads)
    library.set_num_threads(count)
    # Newer threadpoolctl lets only the thread that first set the number set it again.
    return before if int(library.num_threads) == count else None


@dataclass(eq=False)
class _Wish:
    """The number of threads of one `threads` block that has not ended yet."""

    count: int


_wishes: list[_Wish] = []
_before_wishes = 0
_wishes_lock = threading.Lock()


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run a block with `count` threads in SciPy's BLAS, then restore the number.

    The number belongs to the process, not to the calling thread: with two
    concurrent blocks, both run with the number set last.  Whichever ends last,
    the number from before both is restored.

    Parameters
    ----------
    count : int or None
        Number of threads; None changes nothing.
    """
    global _before_wishes
    wish = None
    with _wishes_lock:
        before = None if count is None else set_threads(int(count))
        if count is not None and before is not None:
            wish = _Wish(int(count))
            _before_wishes = _before_wishes if _wishes else before
            _wishes.append(wish)
    try:
        yield
    finally:
        if wish is not None:
            with _wishes_lock:
                _wishes.remove(wish)
                set_threads(_wishes[-1].count if _wishes else _before_wishes)
