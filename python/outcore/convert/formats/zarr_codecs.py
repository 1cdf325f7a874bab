"""Codecs of the Zarr arrays that a copy writes.

A caller gives a name, an object of zarr-python or numcodecs, or the dictionary of such an object.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from outcore._util.packages import load
from outcore.errors import InvalidError

NAMES = ("zstd", "gzip", "blosc", "none")
"""Names that choose a codec with the package's settings, the default first."""

Codec: TypeAlias = str | Mapping[str, Any] | Any
"""One of `NAMES`, an object of zarr-python (numcodecs for version 2), or its dictionary."""

_NEED = {
    3: 'zarr.codecs.ZstdCodec(level=9) or {"name": "zstd", "configuration": {"level": 9}}',
    2: 'numcodecs.Zstd(level=9) or {"id": "zstd", "level": 9}',
}


def compressor(codec: Codec, version: int) -> Any:
    """Return the object that compresses chunks; `None` for ``"none"``.

    Raises
    ------
    InvalidError
        If `codec` is no codec of this version of Zarr that turns bytes into bytes.
    MissingPackageError
        If zarr-python is not installed.
    """
    if codec == "none":
        return None
    found = _of_version_3(codec) if version == 3 else _of_version_2(codec)
    if found is None:
        raise InvalidError(
            f"zarr has the codecs {', '.join(NAMES)}, and in version {version} such as "
            f"{_NEED[version]}, have {codec!r}; choose one"
        )
    return found


def name_of(codec: Codec, version: int) -> str:
    """Return the name of a codec in the metadata of an array, or ``"none"``."""
    if isinstance(codec, str) and codec in NAMES:
        return codec
    made = compressor(codec, version)
    return str(made.to_dict()["name"] if version == 3 else made.codec_id)


def _of_version_3(codec: Codec) -> Any:
    codecs = load("zarr.codecs", "writing Zarr")
    named = {"zstd": codecs.ZstdCodec, "gzip": codecs.GzipCodec, "blosc": codecs.BloscCodec}
    if isinstance(codec, str):
        return named[codec]() if codec in named else None
    if isinstance(codec, Mapping):
        registry = load("zarr.registry", "writing Zarr")
        try:
            codec = registry.get_codec_class(str(codec["name"])).from_dict(dict(codec))
        except (KeyError, TypeError, ValueError):
            return None
    base = load("zarr.abc.codec", "writing Zarr").BytesBytesCodec
    return codec if isinstance(codec, base) else None


def _of_version_2(codec: Codec) -> Any:
    numcodecs = load("numcodecs", "writing Zarr")
    named = {"zstd": numcodecs.Zstd, "gzip": numcodecs.GZip, "blosc": numcodecs.Blosc}
    if isinstance(codec, str):
        return named[codec]() if codec in named else None
    try:
        made = numcodecs.get_codec(dict(codec)) if isinstance(codec, Mapping) else codec
        if not isinstance(made, numcodecs.abc.Codec):
            return None
        made.encode(bytes(64))  # which checks its settings
    except (KeyError, TypeError, ValueError, RuntimeError):
        return None
    return made
