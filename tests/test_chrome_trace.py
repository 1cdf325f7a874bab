"""Traces of all processes and servers: one axis of time, every span in its place, bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mpi_jobs import mpi_program, run_job
from served_pools import served_url

import outcore as oc
from outcore import _core
from outcore.cli import main
from outcore.errors import BusyError
from outcore.report import chrome_trace as traces
from outcore.report.spans import KINDS
from outcore.report.tracing import TracedCall
from outcore.storage import pool_root

__all__ = ["served_url"]

MS = 1e6
"""Nanoseconds."""

N = 96


def rows(*spans: tuple[int, int, int, int, int, int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(spans, np.uint64).reshape(-1, 6)


def process(rank: int, origin: int, calls: list[TracedCall]) -> traces.Process:
    """A process on a machine whose clock of traces began at a time since 1970."""
    start, end = (traces.Clocks(at, origin + at) for at in (0, 10_000))
    return traces.Process(rank, f"node{rank}", 7, start, end, calls)


def spans_of(document: dict[str, Any], track: int) -> list[tuple[str, float, float]]:
    """Return name, start and end of each span of a process or server, in µs."""
    events = [each for each in document["traceEvents"] if each["pid"] == track]
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]


@pytest.fixture(autouse=True)
def no_pools_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget pools that others left open, whose servers are gone: each trace would note that."""
    monkeypatch.setattr(pool_root, "_OPEN", {})


def test_clocks_of_other_origins_are_aligned() -> None:
    """The same moment, by a machine that started 500 ns earlier, and by a server."""
    read = KINDS.index("read")
    one = TracedCall("solving", 1_000, 4_000, rows((read, 0, 2_000, 3_000, 8, 9)))
    other = TracedCall("solving", 1_500, 4_500, rows((read, 0, 2_500, 3_500, 8, 9)))
    disk = np.array([[0, 2_250, 2_750, 5, 6], [0, 2_300, 2_400, 0, 1]], np.uint64)
    clocks = traces.Clocks(100, 1_000_000 + 100 - 250)
    server = traces.Server("I/O server 3", None, clocks, -1_000, ["disk_read"], disk)
    document = traces.trace_document(
        [process(0, 1_000_000, [one]), process(1, 999_500, [other])], [server]
    )
    expected = [("solving", 1.5, 4.5), ("read", 2.5, 3.5)]
    assert spans_of(document, 0) == spans_of(document, 1) == expected
    assert spans_of(document, 2) == [("disk_read", 2.5, 3.0), ("disk_read", 2.55, 2.65)]
    lanes = {e["tid"] for e in document["traceEvents"] if e["pid"] == 2 and e["ph"] == "X"}
    assert len(lanes) == 2, "they overlap"
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["process 0 on node0, pid 7", "process 1 on node1, pid 7", "I/O server 3"]
    assert document["otherData"]["notes"] == []


def test_servers_that_are_silent_or_have_dropped_spans_are_named() -> None:
    none = np.empty((0, 5), np.uint64)
    clocks = traces.Clocks(0, 1_000_000)
    late = traces.Server("I/O server 0", None, clocks, 4_000, [], none)
    silent = traces.Server("I/O server 1", "it is down", clocks, 0, [], none)
    document = traces.trace_document([process(0, 1_000_000, [])], [late, silent])
    notes = document["otherData"]["notes"]
    assert [note.split(":")[0][:24] for note in notes] == [
        "I/O server 0 may lack sp", "I/O server 1 is missing",
    ]  # fmt: skip
    marks = [each for each in document["traceEvents"] if each["ph"] == "i"]
    assert [each["ts"] for each in marks] == [4.0]


@pytest.mark.parametrize("count", [0, 1, 300])
def test_spans_of_one_lane_never_overlap(count: int) -> None:
    rng = np.random.default_rng(count)
    starts = rng.integers(0, 1000, count).astype(np.uint64)
    times = np.column_stack([starts, starts + rng.integers(0, 50, count).astype(np.uint64)])
    lanes = np.array(traces._lanes(times), int)
    for lane in set(lanes):
        mine = times[lanes == lane]
        mine = mine[np.lexsort((mine[:, 1], mine[:, 0]))]
        assert (mine[1:, 0] >= mine[:-1, 1]).all()
    # As few as the spans that overlap at one moment.
    most = max((int(((times[:, 0] <= at) & (times[:, 1] > at)).sum()) for at in starts), default=0)
    assert len(set(lanes)) <= most + 1


def test_processes_of_a_host_read_one_clock() -> None:
    """The difference of the two clocks is the same in each process, however late it reads them."""
    code = "from outcore import _core; print(*_core.Trace.clocks())"
    said = [
        [int(word) for word in subprocess.check_output([sys.executable, "-c", code]).split()]
        for _ in range(2)
    ]
    differences = [unix - trace for trace, unix in [*said, _core.Trace.clocks()]]
    assert max(differences) - min(differences) < MS


JOB = """
import json, sys
import numpy as np
from mpi4py import MPI
import outcore as oc

comm = MPI.COMM_WORLD
home = sys.argv[1]
shape = (256, 4096)
with oc.Pool.from_comm(comm, home + "/{rank}", timeout=60) as pool:
    if comm.rank == 0:
        oc.create_array(pool / "u", shape, chunks=(32, 4096)).close()
        oc.from_array(np.eye(96) + 0.001, pool / "A", order="F", progress=False)
    comm.barrier()
    with oc.chrome_trace(home + "/trace.json", comm, timeout=60):
        with oc.open_array(pool / "u", "r+") as u:
            half = shape[0] // comm.size
            mine = np.full((half, shape[1]), comm.rank + 1.0)
            u.write_all(mine, "block,*", comm, timeout=60)
            u.read_all(None, "block,*", comm, timeout=60)
        from outcore.linalg import lu_factor
        factors = lu_factor(pool / "A", memory="2 MB", comm=comm, timeout=60, threads=1,
                            progress=False)
    assert factors.report.trace == home + "/trace.json"
"""


def test_a_trace_of_processes_and_servers_has_one_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server handles each share between its sending and its acknowledgement, within 1 ms."""
    monkeypatch.setenv("OUTCORE_DIRECT_MEMORY", "off")
    run_job(tmp_path, 2, JOB, None)
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [re.split(r" (?:on|of) ", name)[0] for name in names.values()] == [
        "process 0", "process 1", "I/O server 0", "I/O server 1",
    ]  # fmt: skip
    assert document["otherData"]["notes"] == []
    ms = 1e3
    for track in (0, 1):
        titles = {name for name, *_ in spans_of(document, track)}
        assert {"write_all of", "read_all of"} <= {title.split(" outcore")[0] for title in titles}
        assert any(title.startswith("LU") or "factor" in title for title in titles), titles
    for request, kind in (("give", "write"), ("take", "read")):
        at_servers = _spans(events, (2, 3), request)
        at_processes = [e for e in _spans(events, (0, 1), kind) if "_all of" in e["args"]["call"]]
        assert len(at_servers) == len(at_processes) > 0
        for share in at_servers:
            start, end = share["ts"], share["ts"] + share["dur"]
            assert any(
                e["ts"] - ms <= start and end <= e["ts"] + e["dur"] + ms for e in at_processes
            ), (share, at_processes)
    assert _spans(events, (2, 3), "disk_write")


def _spans(
    events: list[dict[str, Any]], tracks: tuple[int, ...], name: str
) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["pid"] in tracks and e["name"] == name]


def test_the_command_line_traces_all_processes_and_servers(served_url: str, tmp_path: Path) -> None:
    """``outcore solve --trace`` by mpiexec; the report links the trace."""
    with oc.connect(served_url) as pool:
        oc.from_array(np.eye(N) + 0.001, pool / "A", order="F", progress=False).close()
    np.save(tmp_path / "b.npy", np.ones(N))
    trace, report = tmp_path / "run.json", tmp_path / "run.report"
    command = str(Path(sys.executable).with_name("outcore"))
    words = [command, "solve", f"{served_url}/A", str(tmp_path / "b.npy"), "--memory", "1MB"]
    words += ["-o", str(tmp_path / "x.npy"), "--report", str(report), "--trace", str(trace)]
    done = mpi_program(2, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(trace.read_text())
    events = document["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [re.split(r" (?:on|of) ", name)[0] for name in names][:3] == [
        "process 0", "process 1", "I/O server 0",
    ]  # fmt: skip
    for track in (0, 1):
        assert any(name.startswith("LU of") for name, *_ in spans_of(document, track))
    servers = tuple(range(2, len(names)))
    assert _spans(events, servers, "disk_write")
    assert oc.Report.load(report).trace == str(trace)
    # All processes have an error, and one prints it.
    done = mpi_program(2, *words[:-1], str(tmp_path), "--overwrite")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("is a directory; name a file for the trace") == 1, done.stderr


def test_a_report_names_the_trace_and_its_page_links_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    A = oc.from_array(np.eye(N), "A", order="F", progress=False)
    with oc.chrome_trace("run 1.json"):
        _, report = oc.linalg.solve(A, np.ones(N), memory="1 MB", progress=False)
    assert report.trace == str(tmp_path / "run 1.json")
    document = json.loads(Path("run 1.json").read_text())
    titles = [name for name, *_ in spans_of(document, 0)]
    assert {"LU of A", "solving with A.lu", "residual of A"} <= set(titles)
    report.save("run.report")
    assert oc.Report.load("run.report") == report
    done = CliRunner().invoke(main, ["report", "run.report", "-o", "page.html"])
    assert done.exit_code == 0
    assert str(tmp_path / "run 1.json") in done.output
    assert '<a href="run%201.json">run 1.json</a>' in Path("page.html").read_text()
    _, later = oc.linalg.solve(A, np.ones(N), memory="1 MB", progress=False)
    assert later.trace == ""
    assert "trace" not in str(later)


def test_the_servers_of_a_pool_are_in_the_trace(served_url: str, tmp_path: Path) -> None:
    with oc.connect(served_url) as pool:
        with oc.chrome_trace(tmp_path / "t.json"), pool.open("f", "w") as file:
            file.write(bytes(3 << 20))
            file.sync()
        moved = sum(s.bytes_written for s in pool.servers())
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for name in ("write", "sync", "disk_write", "disk_sync"):
        found = [e for e in events if e["ph"] == "X" and e["name"] == name]
        assert found, name
    written = sum(e["args"]["bytes"] for e in events if e["ph"] == "X" and e["name"] == "write")
    assert written == 3 << 20 <= moved


def test_a_pool_that_closes_in_the_block_is_in_the_trace(served_url: str, tmp_path: Path) -> None:
    """Each span is there once, although the pool is open three times."""
    with oc.connect(served_url) as outer:
        with oc.chrome_trace(tmp_path / "t.json"):
            for name in ("f", "g"):
                with oc.connect(served_url) as pool, pool.open(name, "w") as file:
                    file.write(bytes(3 << 20))
                    file.sync()
                pool.close()  # Closing twice is harmless.
        count = len(outer.servers())
    with oc.chrome_trace(tmp_path / "after.json"), oc.connect(served_url):
        pass
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["otherData"]["notes"] == []
    events = document["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [re.split(r" (?:on|of) ", name)[0] for name in tracks] == [
        "process 0", *(f"I/O server {number}" for number in range(count)),
    ]  # fmt: skip
    servers = tuple(range(1, 1 + count))
    assert sum(e["args"]["bytes"] for e in _spans(events, servers, "write")) == 6 << 20
    after = json.loads((tmp_path / "after.json").read_text())["traceEvents"]
    assert len({e["pid"] for e in after}) == 1 + count
    assert not _spans(after, servers, "write"), "they were before the block"


def test_a_pool_whose_spans_cannot_be_read_closes(served_url: str, tmp_path: Path) -> None:
    class Silent:
        def __init__(self, core: Any) -> None:
            self._core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self._core, name)

        def spans(self) -> Any:
            raise BusyError("the manager does not answer")

    with oc.chrome_trace(tmp_path / "t.json"), oc.connect(served_url) as pool:
        root: Any = (pool / "x").root
        root.core = Silent(root.core)
    assert (tmp_path / "t.json").exists()


def test_an_error_in_the_block_of_a_pool_asks_no_server(served_url: str, tmp_path: Path) -> None:
    asked = []
    with oc.chrome_trace(tmp_path / "t.json"):
        pool_root.close_observers.append(asked.append)
        try:
            with pytest.raises(ZeroDivisionError), oc.connect(served_url):
                raise ZeroDivisionError
            assert asked == []
            oc.connect(served_url).close()
            assert len(asked) == 1
        finally:
            pool_root.close_observers.remove(asked.append)


def test_the_pool_of_a_job_that_closes_in_the_block_is_in_the_trace(tmp_path: Path) -> None:
    run_job(tmp_path, 2, CLOSED, None)
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(names) == 4, "a track for each server, although it ran twice"
    # 2 servers store 4 MiB of each pool.
    assert sum(e["args"]["bytes"] for e in _spans(events, (2, 3), "write")) == 8 << 20


CLOSED = """
import sys
from mpi4py import MPI
import outcore as oc

comm = MPI.COMM_WORLD
home = sys.argv[1]
with oc.chrome_trace(home + "/trace.json", comm, timeout=60):
    for name in ("f", "g"):
        with oc.Pool.from_comm(comm, home + "/{rank}", timeout=60) as pool:
            if comm.rank == 1:
                with pool.open(name, "w") as file:
                    file.write(bytes(4 << 20))
                    file.sync()
            comm.barrier()
"""


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_server_that_moves_to_another_host_has_another_clock(ahead: int) -> None:
    second, moved = 10**9, ahead * 10**9
    begun, unix = 10_000 * second, 10**18
    first = np.array([[0, begun, begun + second, 0, 1]], np.uint64)
    later = first.copy()
    later[:, 1:3] += np.array([moved + 5 * second], np.int64).astype(np.uint64)
    joined = traces.joined(
        traces.Server("I/O server 0", None, traces.Clocks(begun, unix), 0, ["write"], first),
        traces.Server(
            "I/O server 0", None, traces.Clocks(begun + moved + 9 * second, unix + 9 * second),
            begun + moved + 2 * second, ["write"], later,
        ),
    )  # fmt: skip
    start, end = (traces.Clocks(at * second, unix + at * second) for at in (0, 10))
    document = traces.trace_document([traces.Process(0, "node0", 7, start, end, [])], [joined])
    assert spans_of(document, 1) == [("write", 0.0, 1e6), ("write", 5e6, 6e6)]
    assert document["otherData"]["notes"] == ["I/O server 0 may lack spans of the first 2.000 s"]


def test_a_server_that_fails_after_its_pool_closed_keeps_its_first_spans() -> None:
    none = np.empty((0, 5), np.uint64)
    first, second = (np.array([[0, at, at + 9, 0, 1]], np.uint64) for at in (100, 300))
    clocks = [traces.Clocks(at, 1_000_000 + at) for at in (200, 400)]
    readings = [
        traces.Server("I/O server 0", None, clocks[0], 0, ["write"], first),
        traces.Server("I/O server 0", "it is down", traces.Clocks(0, 0), 0, [], none),
    ]
    joined = traces.joined(*readings)
    document = traces.trace_document([process(0, 1_000_000, [])], [joined])
    assert spans_of(document, 1) == [("write", 0.1, 0.109)]
    assert document["otherData"]["notes"] == ["I/O server 0 is incomplete: it is down"]
    # It has answered again, and has not dropped its first span.
    again = traces.Server(
        "I/O server 0", None, clocks[1], 0, ["write"], np.concatenate([first, second])
    )
    joined = traces.joined(joined, again)
    assert joined.rows.tolist() == [[0, 100, 109, 0, 1], [0, 300, 309, 0, 1]]
    assert (joined.error, joined.complete_after_ns) == (None, 0)
    # It may have worked between the two readings, if it has dropped spans since.
    late = traces.Server("I/O server 0", None, clocks[1], 250, ["write"], second)
    joined = traces.joined(readings[0], late)
    assert (len(joined.rows), joined.complete_after_ns) == (2, 250)


def test_a_block_that_fails_leaves_no_trace_and_the_next_can_begin(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(ZeroDivisionError), oc.chrome_trace(path):
        _ = 1 / 0
    assert not path.exists()
    assert not pool_root.close_observers
    with oc.chrome_trace(path):
        pass
    assert json.loads(path.read_text())["displayTimeUnit"] == "ms"


def test_bad_places_and_a_second_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(oc.errors.InvalidError, match="is a directory; name a file"):
        oc.chrome_trace(tmp_path).__enter__()
    with pytest.raises(oc.errors.NotFoundError, match="make it first"):
        oc.chrome_trace(tmp_path / "no" / "t.json").__enter__()
    with oc.chrome_trace(tmp_path / "t.json"):
        with pytest.raises(oc.errors.BusyError, match=r"t\.json; end it before the next"):
            oc.chrome_trace(tmp_path / "u.json").__enter__()
        with pytest.raises(oc.errors.InvalidError, match="need a communicator"):
            oc.chrome_trace(tmp_path / "u.json", object()).__enter__()
