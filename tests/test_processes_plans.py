"""Plans of solves by several processes, against the reports of the calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import outcore
from test_cholesky_processes import HELPERS
from test_lu_processes import run

import outcore as oc
from outcore.errors import InvalidError
from outcore.machine.rates import NOMINAL
from outcore.planning.processes import compare_processes

PLANNED = """
from outcore.linalg import cond_est
from outcore.machine.rates import NOMINAL

def equals(plan, report, times=1):
    # The plan is that of the process that moves most.
    moved = lambda each: (each["bytes_read"] + each["bytes_written"], each["bytes_sent"])
    most = max(report.processes, key=moved)
    for what in ("bytes_read", "bytes_written", "bytes_sent"):
        assert getattr(plan, what) * times == most[what], (plan.verb, what, plan, most)
    assert plan.processes == len(report.processes) == comm.size
    assert plan.peak_memory_bytes <= memory
    if plan.verb != "solve":
        assert report.peak_memory_bytes <= plan.peak_memory_bytes, (plan, report)

for n, dtype, memory, rhs, layout in options["cases"]:
    a, b = definite(n, dtype), random(n, dtype, 2)[:, :rhs]
    A = oc.open_array(put(f"A{n}{dtype}", a, **layout))
    same = SAME | {"memory": memory}
    planned = lambda verb, **more: oc.plan(
        verb, n=n, dtype=dtype, memory=memory, path=home, rhs=rhs, rates=NOMINAL,
        processes=comm.size, **more
    )
    on_disk = {"order": A.order, "chunks": A.chunks}
    lu, c = lu_factor(A, **same), cho_factor(A, **same)
    lu_solve(lu, b, **same)
    equals(planned("lu_solve"), oc.last_report())
    cho_solve(c, b, **same)
    equals(planned("cho_solve"), oc.last_report())
    for f, assume_a in ((lu, "gen"), (c, "pos")):
        plan, report = planned("cond_est", assume_a=assume_a), cond_est(f, **same)[1]
        count = int(report.notes[0].split()[0])
        equals(plan, report, count / 5)
        solving = planned("solve", assume_a=assume_a, **on_disk)
        equals(solving, solve(A, b, assume_a=assume_a, factors=f"{home}/F", **same)[1])
        whole = planned("solve", assume_a=assume_a, condition=True, **on_disk)
        for what in ("bytes_read", "bytes_sent"):
            parts = [getattr(each, what) for each in (solving, plan)]
            assert getattr(whole, what) == sum(parts), (what, whole)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 2, 4])
def test_plans_are_exact(tmp_path: Path, size: int) -> None:
    cases = [
        (257, "f8", 400_000, 7, {"order": "F", "chunks": (64, 32)}),
        (193, "c16", 500_000, 2, {"order": "C", "chunks": (32, 64)}),
    ]
    run(tmp_path, size, HELPERS + PLANNED, cases=cases)


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("solve", {}), ("solve", {"assume_a": "pos", "condition": True}), ("lu_solve", {"rhs": 9}),
        ("cho_solve", {}), ("cond_est", {"assume_a": "pos"}),
    ],
)  # fmt: skip
def test_more_processes_move_less_each(
    verb: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"n": 20000, "memory": "200 MB", "rates": NOMINAL, **more}
    one, two, four = compare_processes(verb, [1, 2, 4], **options).plans
    assert one == oc.plan(verb, **options)
    assert (one.processes, one.bytes_sent, one.network_seconds) == (1, 0, 0)
    assert one.bytes_read > two.bytes_read > four.bytes_read > 0
    slow, fast = (
        oc.plan(verb, processes=4, link=link, **options) for link in ("8 Mbit/s", "10 GB/s")
    )
    assert slow.bound == "network" != fast.bound
    assert slow.seconds >= slow.network_seconds > four.bytes_sent / 1e6
    monkeypatch.setattr("outcore.planning.plan.stored_or_measured", lambda path: NOMINAL)
    words = ["--memory", "200 MB", "--processes", "1,2,4", "--rhs", more.get("rhs", 1), "--json"]
    words += [f"--option={name}={value}" for name, value in more.items() if name != "rhs"]
    found = json.loads(outcore("plan", verb, "-n", 20000, *words).stdout)["plans"]
    assert [each["bytes_sent"] for each in found] == [0, two.bytes_sent, four.bytes_sent]


@pytest.mark.parametrize("verb", ["solve", "lu_solve", "cho_solve"])
def test_a_plan_says_which_processes_have_no_right_hand_side(verb: str) -> None:
    for rhs, idle in ((1, 3), (3, 1), (4, 0)):
        given: dict[str, Any] = {"n": 2000, "rhs": rhs, "memory": "8 MB", "rates": NOMINAL}
        notes = " ".join(oc.plan(verb, processes=4, **given).notes)
        assert (f"{idle} of 4 have none" in notes) == (idle > 0), notes
        assert "right-hand side" not in " ".join(oc.plan(verb, **given).notes)


def test_processes_refine_in_no_lower_precision() -> None:
    with pytest.raises(InvalidError, match="need processes=1 with factor_dtype=float32"):
        oc.plan("solve", n=500, factor_dtype="f4", processes=2, memory="4 MB", rates=NOMINAL)
