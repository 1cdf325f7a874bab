"""Older copies of data files, lost writes, longer data files: errors and findings, never a mix."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pool_files import data_files, sums_of

import outcore as oc
from outcore.errors import CorruptError
from outcore.pool.fsck import FsckReport, fsck
from outcore.pool.scrub import scrub

LENGTH = 3_000_000
Places = list[Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Make a pool of two servers with one striped file of generation 1."""
    places = [tmp_path / "a", tmp_path / "b"]
    write(places, b"1", "w")
    return places


def write(places: Places, content: bytes, mode: str = "r+") -> None:
    """Write the whole file and close it, so that the manager knows of it."""
    hints = {"stripe_count": 2} if mode == "w" else None
    with oc.Pool.embedded(places) as pool, pool.open("f", mode, hints=hints) as file:
        file.write(content * LENGTH)
        file.sync()


def check(places: Places, *, repair: bool = False) -> FsckReport:
    with oc.Pool.embedded(places) as pool:
        return fsck(pool, repair=repair, patience_s=0.01)


def of_the_server(place: Path) -> list[Path]:
    return [place / name for name in ("data", "log.0", "log.1")]


def of_the_file(place: Path) -> list[Path]:
    (path,) = data_files(place)
    return [path, sums_of(path)]


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("part", [of_the_server, of_the_file])
def test_an_older_copy_is_an_error_and_a_finding(
    places: Places, tmp_path: Path, part: Callable[[Path], list[Path]], server: int
) -> None:
    paths = part(places[server])
    copies = [copied(path, tmp_path / f"copy{number}") for number, path in enumerate(paths)]
    write(places, b"2")
    for path, copy in zip(paths, copies, strict=True):
        restored(copy, path)
    with pytest.raises(CorruptError, match=f"server {server}: .*need generation 2"):
        write(places, b"3")
    with oc.Pool.embedded(places) as pool:
        pattern = rf"server {server}: .*need generation 2 or a later one, have 1; restore"
        with pytest.raises(CorruptError, match=pattern):
            pool.open("f").read()
    (finding,) = check(places).findings
    assert (finding.kind, finding.server, finding.path) == ("older data", server, "f")
    assert "generation 1, and generation 2 was durable" in finding.text
    # Setting the length accepts the older copy.
    with oc.Pool.embedded(places) as pool, pool.open("f", "r+") as file:
        file.truncate(LENGTH)
        assert set(file.read()) == set(b"13")
    assert check(places).findings == ()


def test_metadata_that_are_older_than_the_data_are_fine(places: Places, tmp_path: Path) -> None:
    manager = places[0] / "manager"
    copied(manager, tmp_path / "copy")
    write(places, b"2")
    restored(tmp_path / "copy", manager)
    with oc.Pool.embedded(places) as pool:
        assert set(pool.open("f").read()) == set(b"2")
    assert check(places).findings == ()


@pytest.mark.parametrize("zeros", [1, 1 << 20])
def test_bytes_that_no_write_explains_are_cut_by_a_repair(places: Places, zeros: int) -> None:
    (path,) = data_files(places[1])
    length = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(zeros))
    with oc.Pool.embedded(places) as pool:
        with pytest.raises(CorruptError, match=r"server 1: .*too long"):
            len(pool.open("f").read())
        (damage,) = scrub(pool, progress=False).damage
        assert (damage.server, damage.offset, damage.nbytes) == (1, length, zeros)
    (finding,) = check(places).findings
    assert (finding.kind, finding.server, finding.repair) == ("long data", 1, "cut them")
    report = check(places, repair=True)
    assert report.is_well
    assert len(report.findings) == 1
    assert path.stat().st_size == length
    assert check(places).findings == ()
    with oc.Pool.embedded(places) as pool:
        assert pool.open("f").read() == b"1" * LENGTH


def test_newer_data_beside_older_checksums_are_not_cut(places: Places, tmp_path: Path) -> None:
    (path,) = data_files(places[1])
    copied(sums_of(path), tmp_path / "copy")
    with oc.Pool.embedded(places) as pool, pool.open("f", "a") as file:
        file.write(b"2" * LENGTH)
        file.sync()
    length = path.stat().st_size
    restored(tmp_path / "copy", sums_of(path))
    findings = {finding.kind: finding.repair for finding in check(places, repair=True).findings}
    assert findings == {"long data": None, "older data": None}
    assert path.stat().st_size == length


def test_data_and_checksums_that_the_disk_lost_are_found(places: Places, tmp_path: Path) -> None:
    (path,) = data_files(places[0])
    data, sums = path.read_bytes(), sums_of(path).read_bytes()
    write(places, b"2")
    path.write_bytes(data)
    sums_of(path).write_bytes(sums_of(path).read_bytes()[:4096] + sums[4096:])
    (finding,) = check(places).findings
    assert (finding.kind, finding.server, finding.path) == ("old checksums", 0, "f")
    with oc.Pool.embedded(places) as pool:
        (damage,) = scrub(pool, progress=False).damage
        assert "checksums are old" in damage.text


def test_a_pool_of_the_first_format_opens_and_is_upgraded(places: Places) -> None:
    for place in places:
        marker = place / "server.json"
        marker.write_text(marker.read_text().replace('"format": 2', '"format": 1'))
        (path,) = data_files(place)
        path.with_name(path.name + ".sums").write_bytes(sums_of(path).read_bytes()[4096:])
        sums_of(path).unlink()
    # Such a pool's manager has heard of no generation.
    with oc.Pool.embedded(places) as pool, pool.open("f", "r+") as file:
        file.truncate(LENGTH)
        assert file.read() == b"1" * LENGTH
    assert check(places).findings == ()
    for place in places:
        assert '"format": 2' in (place / "server.json").read_text()
        assert not list(place.glob("data/*/*.sums"))
    write(places, b"2")
    assert check(places).findings == ()


def copied(path: Path, copy: Path) -> Path:
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copy(path, copy)
    return copy


def restored(copy: Path, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        shutil.copytree(copy, path)
    else:
        shutil.copy(copy, path)
