"""Collectives of the C library: processes in C, against NumPy and Python's collectives."""

import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from communicators import ThreadJob
from compiled_c import ROOT, SANITIZED, Compile
from served import Served, serve
from timeouts import HANG_S

import outcore as oc

EIO, EINVAL, EROFS, ENODATA, ENOTCONN = 5, 22, 30, 61, 107
Boxes = list[tuple[slice, ...]]


class Rank(NamedTuple):
    """The part of one process."""

    boxes: Boxes
    verb: str = "array-write"
    path: str = "A"
    fault: str = ""


class Ended(NamedTuple):
    """The result of one process: its error number and text, or the counts of its exchange."""

    errno: int
    text: str
    counts: tuple[int, ...]


class Job:
    """A parallel program in C on a served pool."""

    def __init__(self, program: Path, served: Served, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._url = served.url
        self.variables = {"OUTCORE_KEY": str(served.key)}

    def data(self, rank: int) -> Path:
        """Return the file with the elements of a process."""
        return self._folder / f"data-{rank}"

    def run(self, *ranks: Rank) -> list[Ended]:
        """Run all processes, and return their results."""
        pairs = [socket.socketpair() for _ in ranks[1:]]
        started = []
        for number, rank in enumerate(ranks):
            ends = [pair[0] for pair in pairs] if number == 0 else [pairs[number - 1][1]]
            sockets = [end.fileno() for end in ends]
            started.append(subprocess.Popen(
                [
                    self._program, self._url, str(number), str(len(ranks)),
                    ",".join(map(str, sockets)), rank.verb, rank.path, written(rank.boxes),
                    self.data(number), rank.fault,
                ],
                env=os.environ | self.variables, pass_fds=sockets, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ))  # fmt: skip
        for end in (end for pair in pairs for end in pair):
            end.close()
        hanging = [number for number, rank in enumerate(ranks) if rank.fault == "hangs"]
        others = [each for number, each in enumerate(started) if number not in hanging]
        said = {each.pid: each.communicate(timeout=HANG_S) for each in others}
        for number in hanging:
            started[number].kill()
            said[started[number].pid] = started[number].communicate()
        return [ended(each, *said[each.pid]) for each in started]


def ended(process: "subprocess.Popen[str]", out: str, err: str) -> Ended:
    assert not err, err
    if not out:
        return Ended(-1, "it left", ())
    first, _, rest = out.strip().partition(" ")
    counts = tuple(map(int, rest.split())) if first == "0" else ()
    return Ended(int(first), rest, counts)


def written(boxes: Boxes) -> str:
    """Return boxes in the form of the program."""
    each = [
        ":".join(
            ",".join(map(str, numbers))
            for numbers in ([s.start for s in box], [s.stop - s.start for s in box])
        )
        for box in boxes
    ]
    return ";".join(each) or "-"


@pytest.fixture(params=[[], SANITIZED], ids=["plain", "sanitized"])
def job(request: pytest.FixtureRequest, compiled: Compile, served: Served, tmp_path: Path) -> Job:
    return Job(compiled(ROOT / "tests/c_library/ranks.c", *request.param), served, tmp_path)


@pytest.fixture
def sanitized(compiled: Compile, served: Served, tmp_path: Path) -> Job:
    return Job(compiled(ROOT / "tests/c_library/ranks.c", *SANITIZED), served, tmp_path)


SHAPE = (300, 200)
WRITTEN: list[Boxes] = [
    [np.s_[0:100, 0:200], np.s_[100:130, 50:60]],
    [],
    [np.s_[100:300, 60:200]],
    [np.s_[100:300, 0:50], np.s_[130:130, 50:60], np.s_[130:300, 50:60]],
]
"""Boxes of four processes, one of them without any, which cover the array."""

READ: list[Boxes] = [
    [np.s_[0:101, 0:200]],
    [np.s_[99:201, 0:200], np.s_[100:102, 3:5]],
    [],
    [np.s_[17:18, 19:20], np.s_[199:300, 0:200]],
]
"""Boxes with ghost cells: they overlap."""


def give(job: Job, content: npt.NDArray[np.float64], boxes: list[Boxes]) -> None:
    for number, own in enumerate(boxes):
        parts = [content[box].ravel() for box in own]
        job.data(number).write_bytes(np.concatenate([*parts, np.empty(0)]).tobytes())


def taken(job: Job, content: npt.NDArray[np.float64], boxes: list[Boxes]) -> bool:
    """Whether each process has read its elements."""
    return all(
        job.data(number).read_bytes() == b"".join(content[box].tobytes() for box in own)
        for number, own in enumerate(boxes)
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_written_and_read_by_all(job: Job, served: Served, order: str) -> None:
    content = np.random.default_rng(5).random(SHAPE)
    with oc.connect(served.url, key=served.key) as pool:
        oc.create_array(pool / "A", SHAPE, "f8", chunks=(64, 48), order=order).close()
        give(job, content, WRITTEN)
        done = job.run(*(Rank(own) for own in WRITTEN))
        assert [each.errno for each in done] == [0] * 4, done
        with oc.open_array(pool / "A") as array:
            assert array.metadata.state is None
            np.testing.assert_array_equal(array[:], content)
        with pool.open("A/outcore.generation") as file:
            assert bytes(file.read()) == b"2"
        done = job.run(*(Rank(own, "array-read") for own in READ))
        assert [each.errno for each in done] == [0] * 4, done
        assert taken(job, content, READ)
        assert [each.counts[2] for each in done] == [
            sum(content[box].nbytes for box in own) for own in READ
        ]


@pytest.mark.parametrize("length", [0, 30, 3 << 20, 40 << 30])
def test_servers_without_a_data_file_give_zeros(
    sanitized: Job, served: Served, length: int
) -> None:
    """The first write to a server makes its data file, and a file may have none at all."""
    first = bytes(range(1, min(length, 30) + 1))
    with oc.connect(served.url, key=served.key) as pool:
        with pool.open("F", "w") as file:
            file.write(first)
            if length > 30:
                file.write_at(length - 1, bytes(1))
        boxes = [runs((0, len(first))), runs((max(length - 10, 0), min(length, 10))), runs()]
        done = sanitized.run(*(Rank(own, "file-read", "F") for own in boxes))
        assert [each.errno for each in done] == [0] * 3, done
        assert sanitized.data(0).read_bytes() == first
        assert sanitized.data(1).read_bytes() == (
            first[20:] if length == 30 else bytes(min(length, 10))
        )


@pytest.mark.parametrize("verb", ["array-write", "array-read"])
def test_the_messages_are_those_of_python(
    sanitized: Job, served: Served, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without reads of memory, which depend on the rights of the servers."""
    monkeypatch.setenv("OUTCORE_DIRECT_MEMORY", "off")
    content, boxes = np.random.default_rng(6).random(SHAPE), WRITTEN
    schema = oc.Schema.boxes(boxes)
    with oc.connect(served.url, key=served.key) as pool:
        array = oc.create_array(pool / "A", SHAPE, "f8", chunks=(64, 48))
        array[:] = content
        give(sanitized, content, boxes)

        def work(comm: object) -> tuple[int, ...]:
            with oc.open_array(pool / "A", "r+") as own:
                parts = [content[box].copy() for box in boxes[comm.rank]]  # type: ignore[attr-defined]
                if verb == "array-write":
                    report = own.write_all(parts, schema, comm)
                else:
                    own.read_all(None, schema, comm)
                    report = own.collective_report
                messages = sum(report.messages.values())
                return messages, report.shares, report.bytes_moved, report.direct_bytes

        theirs = ThreadJob(len(boxes)).run(work)
        done = sanitized.run(*(Rank(own, verb) for own in boxes))
        assert [each.counts for each in done] == theirs


def test_one_process_needs_no_broadcast(sanitized: Job, served: Served) -> None:
    content = np.random.default_rng(7).random(SHAPE)
    with oc.connect(served.url, key=served.key) as pool:
        oc.create_array(pool / "A", SHAPE, "f8").close()
        whole: list[Boxes] = [[np.s_[0:300, 0:200]]]
        give(sanitized, content, whole)
        assert [each.errno for each in sanitized.run(Rank(whole[0]))] == [0]
        with oc.open_array(pool / "A") as array:
            np.testing.assert_array_equal(array[:], content)


def runs(*each: tuple[int, int]) -> Boxes:
    return [(slice(offset, offset + nbytes),) for offset, nbytes in each]


@pytest.mark.parametrize("before", [0, 1_000_003, 5_000_000])
def test_files_are_written_and_read_by_all(job: Job, served: Served, before: int) -> None:
    """Files of odd lengths, with holes, before and after which bytes stay."""
    old = np.random.default_rng(8).integers(1, 256, before, np.uint8)
    new = np.random.default_rng(9).integers(1, 256, 4_000_000, np.uint8)
    boxes = [
        runs((3, 1_200_000), (2_000_001, 7)),
        runs(*((1_300_000 + 100 * i, 30) for i in range(500))),
        [],
        runs((3_999_000, 1000), (2_000_008, 700_000), (1_200_003, 50_000)),
    ]
    expected = np.zeros(max(before, 4_000_000), np.uint8)
    expected[:before] = old
    with oc.connect(served.url, key=served.key) as pool:
        (pool / "F").write_bytes(old.tobytes())
        for number, own in enumerate(boxes):
            parts = [new[box] for box in own]
            job.data(number).write_bytes(b"".join(part.tobytes() for part in parts))
            for box in own:
                expected[box] = new[box]
        done = job.run(*(Rank(own, "file-write", "F") for own in boxes))
        assert [each.errno for each in done] == [0] * 4, done
        assert pool.stat("F").nbytes == len(expected)
        assert (pool / "F").read_bytes() == expected.tobytes()
        last = len(expected)
        boxes = [
            runs((0, last)),
            runs((last - 1, 1), (5, 10), (0, 20)),
            runs(),
            runs((17, 1 << 20)),
        ]
        done = job.run(*(Rank(own, "file-read", "F") for own in boxes))
        assert [each.errno for each in done] == [0] * 4, done
        for number, own in enumerate(boxes):
            read = b"".join(expected[box].tobytes() for box in own)
            assert job.data(number).read_bytes() == read


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_each_block_gets_the_common_bytes_of_one_process(
    compiled: Compile, tmp_path: Path, way: str
) -> None:
    """Over UNIX sockets, servers read long runs from memory, and get short ones in messages."""
    blocks, bytes_of_block = 9, 64 << 10
    end, gap = blocks * bytes_of_block, 4 * bytes_of_block
    boxes = [
        runs((0, end)),
        runs(*((at, 512) for at in range(0, end, 2048))),
        # The last process leaves bytes out in the first row of a block.
        runs((0, gap), (gap + 1024, end - gap - 1024)),
    ]
    program = compiled(ROOT / "tests/c_library/ranks.c", *SANITIZED)
    with serve(tmp_path, way) as served, oc.connect(served.url, key=served.key) as pool:
        job = Job(program, served, tmp_path)
        (pool / "F").write_bytes(b"")
        for number, (own, letter) in enumerate(zip(boxes, b"abc", strict=True)):
            count = sum(box[0].stop - box[0].start for box in own)
            job.data(number).write_bytes(bytes([letter]) * count)
        done = job.run(*(Rank(own, "file-write", "F") for own in boxes))
        assert [each.errno for each in done] == [0] * 3, done
        direct = [each.counts[3] > 0 for each in done]
        assert direct == ([True, False, True] if way == "unix" else [False] * 3)
        found = np.frombuffer((pool / "F").read_bytes(), np.uint8).reshape(blocks, -1, 2048)
    for block in found:
        assert len(set(block[1:, :512].ravel())) == 1, "common bytes of all"
        assert len(set(block[1:, 512:].ravel())) == 1, "common bytes of the first and last"


def test_a_file_is_written_far_from_its_beginning(sanitized: Job, served: Served) -> None:
    """No process and no server examines the millions of pieces before the regions."""
    end = 1 << 42
    boxes = [runs((end - 10, 10)), runs(), runs((1 << 40, 5), (end - 13, 3))]
    with oc.connect(served.url, key=served.key) as pool:
        (pool / "F").write_bytes(b"")
        for number, content in enumerate((b"c" * 10, b"", b"aaaaabbb")):
            sanitized.data(number).write_bytes(content)
        for verb in ("file-write", "file-read"):
            done = sanitized.run(*(Rank(own, verb, "F") for own in boxes))
            assert [each.errno for each in done] == [0] * 3, done
            assert [each.counts[2] for each in done] == [10, 0, 8]
        assert [sanitized.data(number).read_bytes() for number in (0, 2)] == [
            b"c" * 10,
            b"aaaaabbb",
        ]
        with pool.open("F") as file:
            assert bytes(file.read_at(end - 14, 14)) == b"\0bbb" + b"c" * 10


@pytest.mark.parametrize("verb", ["array-write", "array-read", "file-write", "file-read"])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(
    ("fault", "errno", "words"),
    [
        ("short", EINVAL, "process {at}: need memory of"),
        ("read-only", EROFS, "process {at}: "),
        ("astray", EINVAL, "do not agree on the name"),
        ("no time", EINVAL, "process {at}: need a time"),
        ("outside", EINVAL, ""),
        ("null", EINVAL, "process {at}: need an array or file, have NULL"),
        ("forks", ENOTCONN, "fork"),
        ("leaves", EIO, "the function to broadcast returned 7"),
        ("silent", EIO, "process {at}"),
        ("hangs", EIO, "process {at}"),
    ],
)
def test_the_fault_of_a_process_is_an_error_on_all(
    sanitized: Job, served: Served, verb: str, at: int, fault: str, errno: int, words: str
) -> None:
    """No fault before the exchange changes the array or the file."""
    is_array, is_write = verb.startswith("array"), verb.endswith("write")
    if fault == "read-only" and not is_write:
        pytest.skip("a reader needs no right to write")
    boxes: list[Boxes] = [
        [np.s_[i : i + 1, 0:5]] if is_array else runs((10 * i, 10)) for i in range(3)
    ]
    if fault == "outside":
        boxes[at] = [np.s_[2:4, 0:5]] if is_array else runs((25, 10))
        if not is_array and is_write:
            # Bytes that a process gives twice.
            boxes[at], words = runs((4, 5), (8, 5)), f"process {at}: need each byte of a write once"
        elif not is_array:
            errno, words = ENODATA, "up to 35"
    with oc.connect(served.url, key=served.key) as pool:
        for suffix in ("", "-2"):
            oc.create_array(pool / f"A{suffix}", (3, 5), "f8").close()
            (pool / f"F{suffix}").write_bytes(bytes(30))
        if is_array:
            give(sanitized, np.ones((4, 5)), boxes)
        else:
            for number in range(3):
                sanitized.data(number).write_bytes(b"\1" * 10)
        faults = [fault if number == at else "" for number in range(3)]
        path = "A" if is_array else "F"
        done = sanitized.run(
            *(Rank(own, verb, path, each) for own, each in zip(boxes, faults, strict=True))
        )
        for number, each in enumerate(done):
            if number == at and fault in ("leaves", "silent", "hangs"):
                assert each.errno == -1
                continue
            assert each.errno == errno, done
            if number == at and fault == "null":
                continue  # without a handle there is no text
            assert words.format(at=at) in each.text, done
        if fault not in ("silent", "hangs"):
            with oc.open_array(pool / "A") as array:
                assert not array[:].any()
            assert (pool / "F").read_bytes() == bytes(30)


def test_verbs_at_odds_are_an_error_on_all(sanitized: Job, served: Served) -> None:
    boxes: list[Boxes] = [[np.s_[0:1, 0:5]], [np.s_[1:2, 0:5]]]
    with oc.connect(served.url, key=served.key) as pool:
        oc.create_array(pool / "A", (3, 5), "f8").close()
        give(sanitized, np.ones((3, 5)), boxes)
        done = sanitized.run(Rank(boxes[0]), Rank(boxes[1], "array-read"))
        for each in done:
            assert each.errno == EINVAL
            assert (
                "do not agree on the call: outcore_array_read_all and outcore_array_write_all"
                in each.text
            )
