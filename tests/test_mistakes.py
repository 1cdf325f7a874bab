"""Mistakes of users in arguments of the Python interface, and their errors."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import outcore as oc
from outcore._util.sizes import MOST_BYTES, parse_bytes
from outcore.cli import main
from outcore.errors import InvalidError, NotFoundError


@pytest.mark.parametrize(
    "size", [2**62 + 1, 2**90, math.inf, "99999999999TB", "9" * 400, "1e400", "5e30 B"]
)
def test_a_size_that_nothing_has_is_refused(size: Any) -> None:
    with pytest.raises(InvalidError, match=r"at most 2\^62"):
        parse_bytes(size)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": True},
        {"shape": (True, 3)},
        {"shape": 3, "chunks": True},
        {"shape": 3, "threads": True},
    ],
)
def test_a_truth_value_is_no_count(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        oc.create_array(tmp_path / "A", fill=lambda *box: np.ones(3), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_sizes_up_to_the_limit_are_read() -> None:
    assert parse_bytes("4194304 TiB") == MOST_BYTES
    assert parse_bytes(np.int64(7)) == 7


@pytest.mark.parametrize("size", [True, False, np.True_])
def test_a_truth_value_is_no_size(size: Any) -> None:
    with pytest.raises(InvalidError, match="a size is a number of bytes, have "):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("verb", "wrong", "name"),
    [
        ("lu", {"n": 10.5}, "n"),
        ("lu", {"n": "10"}, "n"),
        ("lu", {"n": True}, "n"),
        ("lu", {"n": 10, "rhs": -3}, "rhs"),
        ("lu", {"n": 10, "rhs": 1.5}, "rhs"),
        ("matmul", {"n": 10, "m": -3}, "m"),
        ("matmul", {"n": 10, "k": -2}, "k"),
        ("gram", {"n": 10, "m": 0}, "m"),
        ("gmres", {"n": 10, "restart": -3}, "restart"),
    ],
)
def test_plans_refuse_counts_that_cannot_be(verb: str, wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidError, match=f"{name} must be an integer of at least 1"):
        oc.plan(verb, **wrong)


def test_plans_refuse_rows_and_inner_lengths_where_there_are_none() -> None:
    with pytest.raises(InvalidError, match="is square"):
        oc.plan("lu", n=10, m=3)
    with pytest.raises(InvalidError, match="has no k="):
        oc.plan("cholesky", n=10, k=3)
    assert oc.plan("lu", n=10, m=10).n == 10


def test_numbers_of_numpy_are_counts() -> None:
    numbers: dict[str, Any] = {"n": np.int64(10), "rhs": np.uint8(2)}
    found = oc.plan("lu", **numbers, memory="1 GiB", path=".")
    assert (found.n, type(found.n)) == (10, int)
    assert found.bytes_read == oc.plan("lu", n=10, rhs=2, memory="1 GiB").bytes_read


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/A", "file:///tmp/A", "outcor://host/A", "outcore:disk::A", "outcore:",
        "a\0b", "latin-\udce9", b"A", 3, None, np.zeros((50, 50)), "", "~", "~/A",
    ],
)  # fmt: skip
def test_what_is_no_path_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError) as found:
        oc.create_array(path, (3,))
    assert len(str(found.value)) < 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["s3://bucket/x", "outcore:disk::x", "latin-\udce9", "", "~/x"])
def test_the_command_line_takes_no_foreign_url_for_a_plain_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(b"bytes")
    for arguments in (["cp", "x", name], ["mkdir", "-p", name], ["ls", name]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert "error: " in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_names_with_colons_and_spaces_are_plain_paths(tmp_path: Path) -> None:
    for name in ("a:b", "run 1", "ü☃", "-dash", "c::d", "~u", "u~"):
        oc.create_array(tmp_path / name, (3,)).close()
        assert oc.open_array(tmp_path / name).shape == (3,)


def test_a_file_where_an_array_is_wanted_is_said_to_be_one(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    with pytest.raises(NotFoundError, match="but a file; copy it with"):
        oc.linalg.solve(tmp_path / "a.npy", np.ones(3), progress=False)


@pytest.mark.parametrize("dims", [(1,), (None,), ("x", "y")])
def test_names_of_dimensions_that_zarr_would_not_read(tmp_path: Path, dims: Any) -> None:
    with pytest.raises(InvalidError, match="names of dimensions"):
        oc.create_array(tmp_path / "A", (3,), dims=dims)
    assert not (tmp_path / "A").exists()


def test_a_shape_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="a shape is integers"):
        oc.create_array(tmp_path / "A", None)  # type: ignore[arg-type]


def test_metadata_nested_without_end_are_corrupt(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", (3,)).close()
    (tmp_path / "A" / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(oc.errors.CorruptError, match="cannot be read"):
        oc.open_array(tmp_path / "A")


def test_objects_have_no_bytes_in_a_pools_file(tmp_path: Path) -> None:
    objects = np.array(["a", None], dtype=object)
    with oc.Pool.embedded([tmp_path / "d"]) as pool, pool.open("f", "w") as file:
        file.write(bytes(64))
        writes: list[Callable[[], object]] = [
            lambda: file.write(objects),
            lambda: file.write(memoryview(objects)),
            lambda: file.write_at(0, objects),
            lambda: file.write_list([0], 16, data=objects),
            lambda: file.view(0, 8, 16).write_at(0, objects),
            lambda: file.start_write_at(0, objects),
            # Python would treat numbers read into object arrays as addresses.
            lambda: file.read_at(0, out=objects),
            lambda: file.readinto(objects),
            lambda: file.readinto(memoryview(objects)),
            lambda: file.read_list([0], 16, out=objects),
        ]
        for write in writes:
            with pytest.raises(InvalidError, match="elements of object"):
                write()
        assert file.read_at(0, 64).tobytes() == bytes(64)
    assert objects.tolist() == ["a", None]


def test_negative_positions_and_hints_that_are_no_numbers(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "d"]) as pool:
        with pool.open("f", "w") as file:
            for wrong in (
                lambda: file.read_at(-1, 3),
                lambda: file.read_at(0, -3),
                lambda: file.write_at(-1, b"x"),
                lambda: file.write_at(2**64, b"x"),
                lambda: file.read_strided(0, -3, 8, 5, 16),
                lambda: file.write_strided(0, 0, 8, -5, 16, data=b""),
            ):
                with pytest.raises(InvalidError, match="at least 0 and below"):
                    wrong()
        for hint in ("striping_factor", "start_iodevice"):
            with pytest.raises(InvalidError, match=f"the hint {hint} is a number, have 'x'"):
                pool.open("g", "w", hints={hint: "x"})
        for name in (3, "latin-\udce9", "a\0b"):
            with pytest.raises(InvalidError):
                pool / name  # type: ignore[operator]
        assert pool.ls() == ["f"]


def test_a_pool_is_not_begun_in_an_array(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", (3,)).close()
    before = sorted(path.name for path in (tmp_path / "A").iterdir())
    with pytest.raises(InvalidError, match="no place for a pool"):
        oc.Pool.embedded([tmp_path / "A"])
    for options, message in ((["--dirs"], "no place for a pool"), ([], "no pool was started")):
        result = CliRunner().invoke(main, ["pool", "up", *options, str(tmp_path / "A")])
        assert (result.exit_code, message in result.stderr) == (1, True)
    assert sorted(path.name for path in (tmp_path / "A").iterdir()) == before


def test_directories_in_another_order_leave_no_second_pool(tmp_path: Path) -> None:
    one, two, fresh = (tmp_path / name for name in ("one", "two", "fresh"))
    with oc.Pool.embedded([one, two]) as pool, pool.open("f", "w") as file:
        file.write(b"data")
    before = sorted(path.name for path in two.iterdir())
    for wrong in ([two, one], [two], [fresh, two], [fresh, one]):
        with pytest.raises(InvalidError, match=r"of another pool|not its first directory"):
            oc.Pool.embedded(wrong)
        with contextlib.suppress(FileNotFoundError):
            fresh.rmdir()  # fails if a pool left files in it
        result = CliRunner().invoke(main, ["pool", "up", *map(str, wrong)])
        assert result.exit_code == 1
        with contextlib.suppress(FileNotFoundError):
            fresh.rmdir()
    assert sorted(path.name for path in two.iterdir()) == before
    with oc.Pool.embedded([one, two, fresh]) as pool, pool.open("f") as file:
        assert file.read() == b"data"
