"""Mounts that are refused: by their directories, or because the other side is no such pool."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import outcore
from mounted import mounted
from served import Served, daemon, make_key

import outcore as oc

HEADER_BYTES = 48


def refused(served: Served, place: Path) -> tuple[str, str]:
    """Mount a pool, which must fail; return the kind and the text of the error."""
    result = outcore("mount", "--json", "--key", served.key, served.url, place)
    assert result.exit_code == 1, result.output
    error = json.loads(result.stdout)["error"]
    return error["kind"], error["message"]


def test_a_directory_in_which_a_pool_stores_its_data(served: Served, tmp_path: Path) -> None:
    # The fixture stores the data of its servers, and of its manager, here.
    home = served.key.parent
    (tmp_path / "link").symlink_to(home)
    for number, place in enumerate(("a/mine", "b/x/mine", "a/manager/mine")):
        (home / place).mkdir(parents=True)
        (tmp_path / f"to-{number}").symlink_to(home / place)
        for each in (home / place, tmp_path / "link" / place, tmp_path / f"to-{number}"):
            kind, message = refused(served, each)
            assert kind == "invalid"
            assert f"have {each} in {home / place[0]}," in message
            assert message.startswith("need a directory outside of those")
            assert message.endswith("; choose another directory")
        assert os.listdir(home / place) == []


def test_a_directory_above_the_data_of_a_pool(served: Served) -> None:
    for place in (served.key.parent, served.key.parent / "a"):
        kind, message = refused(served, place)
        assert (kind, "which the mount would hide" in message) == ("invalid", True)


def test_a_pool_that_would_store_its_data_in_a_mount(served: Served, tmp_path: Path) -> None:
    def refused_by(start: Callable[[], object]) -> str:
        with pytest.raises(oc.errors.InvalidError) as caught:
            start()
        return str(caught.value)

    with mounted(served, tmp_path / "m") as found:
        (found.place / "d").mkdir()
        (tmp_path / "link").symlink_to(found.place / "d")
        manager = served.url.replace("outcore://", "tcp:")
        for place in (found.place / "d", found.place / "new", tmp_path / "link"):
            for start in (
                lambda place=place: oc.Pool.embedded([tmp_path / "a", place]),
                lambda place=place: daemon(tmp_path, served.key, "manager", str(place)),
                lambda place=place: daemon(
                    tmp_path, served.key, "io", str(place), manager=f'["{manager}"]'
                ),
            ):
                message = refused_by(start)
                assert message.startswith("need a directory outside of mounted pools")
                assert f"have {place} in {found.place}, where {served.url}/ is mounted" in message
                assert message.endswith("; choose a directory on a disk")
        assert set(os.listdir(found.place / "d")) == set()


def test_a_wrong_key(served: Served, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    kind, message = refused(Served(served.url, make_key(tmp_path / "wrong.key")), tmp_path / "m")
    assert kind == "denied"
    assert "key" in message
    assert not os.path.ismount(tmp_path / "m")


def test_another_version_of_the_protocol(served: Served, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(HEADER_BYTES)
                connection.sendall(b"OUTC" + bytes([7, 0]) + bytes(HEADER_BYTES - 6))

        threading.Thread(target=answer, daemon=True).start()
        host, port = listener.getsockname()
        kind, message = refused(Served(f"outcore://{host}:{port}", served.key), tmp_path / "m")
    assert kind == "invalid"
    assert ": need version " in message
    assert "the other side has version 7" in message
    assert message.endswith("; install the same outcore on both")
