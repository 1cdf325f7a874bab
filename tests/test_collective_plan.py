"""Plans of collectives on arrays that do not exist yet, against those of the created arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from direct_memory import is_read_by_children
from own_daemons import OwnDaemons
from served_pools import in_memory
from test_collective import RATES
from test_pool_metrics import total, values

import outcore as oc
from outcore.errors import InvalidError
from outcore.machine.rates import NOMINAL
from outcore.planning import collective_plan

CASES: list[tuple[oc.ArraySpec, oc.Schema, int]] = [
    (oc.ArraySpec((50, 40, 30)), oc.Schema("block,*,cyclic(3)", mesh=(2, 2)), 5),
    (oc.ArraySpec((600, 700), "f4", chunks=(100, 130), order="F"), oc.Schema("block,*"), 3),
    (oc.ArraySpec(5_000_000, "u1", chunks=400_000, chunk_order="hilbert"), oc.Schema("cyclic"), 2),
    (
        oc.ArraySpec((64, 64, 64), disk_schema="natural", mesh=(2, 2, 2)),
        oc.Schema("block,block,block", mesh=(2, 2, 2)),
        8,
    ),
    (oc.ArraySpec((301, 500), disk_schema="traditional"), oc.Schema("*,block"), 4),
    (oc.ArraySpec((64, 90), disk_schema="block,block", mesh=(2, 1)), oc.Schema("*,*"), 1),
    (oc.ArraySpec((4, 5)), oc.Schema.boxes([[], [(slice(1, 3), slice(0, 5))]]), 2),
    (oc.ArraySpec((300, 300), "u1", chunks=(1, 1)), oc.Schema("block,*"), 2),
]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("spec", "schema", "processes"), CASES)
@pytest.mark.parametrize("servers", [1, 3, 5])
def test_what_is_not_there_is_planned_as_if_it_were(
    spec: oc.ArraySpec, schema: oc.Schema, processes: int, servers: int
) -> None:
    """Plan on the pool itself, and for as many servers from another pool."""
    among = {"schema": schema, "processes": processes, "rates": RATES}
    with in_memory() as directory:
        places = [directory / str(number) for number in range(servers)]
        with oc.Pool.embedded(places) as pool, oc.Pool.embedded([directory / "other"]) as other:
            for verb in ("write_all", "read_all"):
                before = oc.plan(verb, array=spec, path=pool / "d/u", **among)
                elsewhere = oc.plan(verb, array=spec, path=other / "u", servers=servers, **among)
                assert (pool / "d").exists() == (verb == "read_all"), "a plan makes nothing"
                with create(pool / "d/u", spec) as u:
                    assert (u.metadata.grid().shards > 1) == (spec.chunks == (1, 1))
                    there = oc.plan(verb, array=u, **among)
                assert figures(before) == figures(there)
                assert figures(elsewhere) == figures(there)
                assert before.imbalance == there.imbalance
                assert before.seconds == there.seconds
                assert elsewhere.seconds == pytest.approx(there.seconds / servers)
                assert before.path == str(pool / "d/u")
                rate = RATES.write_bytes_s if verb == "write_all" else RATES.read_bytes_s
                fullest = max(there.server_bytes.values())
                assert there.seconds == pytest.approx(fullest * servers / rate)


def create(path: oc.PoolPath, spec: oc.ArraySpec) -> oc.Array:
    return oc.create_array(
        path, spec.shape, spec.dtype, chunks=spec.chunks, order=spec.order,
        chunk_order=spec.chunk_order, disk_schema=spec.disk_schema, mesh=spec.mesh,
        if_exists="overwrite", reserve=False,
    )  # fmt: skip


def figures(plan: Any) -> Any:
    """Figures that do not depend on the first server of a file."""
    return (
        plan.nbytes,
        plan.process_bytes,
        sorted(plan.server_bytes.values()),
        [sorted(each.values()) for each in plan.messages],
    )


COUNTER = "outcore_requests_total"
MESSAGES = ("join", "await", "give", "take", "abandon")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("is_offered", [False, True])
@pytest.mark.parametrize("chunks", [(7, 90), (1, 1)])
def test_messages_are_those_that_the_servers_count(
    chunks: tuple[int, int],
    is_offered: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check several shard files too, and calls that write nothing."""
    is_read_from_memory = is_offered and is_read_by_children()
    if not is_offered:
        monkeypatch.setenv("OUTCORE_DIRECT_MEMORY", "off")
    shape, size = (300, 90), 3
    with in_memory() as home:
        served = OwnDaemons(tmp_path, [home / "a", home / "b"], metrics=True)
        try:
            with served.connect() as pool:
                oc.create_array(pool / "u", shape, "u1", chunks=chunks).close()
                for verb, options in [
                    ("write_all", {}),
                    ("write_all", {"skip_disk": True}),
                    ("read_all", {}),
                ]:
                    counted = count_of_calls(pool, served, verb, options, size)
                    plan = oc.plan(
                        verb, array=pool / "u", schema="block,*", processes=size, rates=RATES,
                        **options,
                    )  # fmt: skip
                    is_direct = is_read_from_memory and verb == "write_all"
                    planned = plan.direct_messages if is_direct else plan.messages
                    reported, by_servers = counted
                    assert reported == list(planned), (verb, options)
                    for number, count in enumerate(by_servers):
                        assert count == sum(each.get(number, 0) for each in planned)
        finally:
            served.stop()


def count_of_calls(
    pool: oc.Pool, served: OwnDaemons, verb: str, options: dict[str, bool], size: int
) -> tuple[list[dict[int, int]], list[float]]:
    """Messages of each process by its report, and of each server by its metrics."""

    def counts() -> list[float]:
        each = [values(daemon) for daemon in served.daemons[1:]]
        return [sum(total(of, COUNTER, kind=kind) for kind in MESSAGES) for of in each]

    def work(comm: ThreadComm) -> dict[int, int]:
        with oc.open_array(pool / "u", "r+") as u:
            getattr(u, verb)(np.full((100, 90), 7, "u1"), "block,*", comm, timeout=60, **options)
            assert u.collective_report is not None
            return u.collective_report.messages

    before = counts()
    reported = ThreadJob(size).run(work)
    return reported, [after - one for after, one in zip(counts(), before, strict=True)]


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    spec = oc.ArraySpec((8, 8))
    among: Any = {"schema": "block,*", "processes": 2, "rates": RATES}
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        u = oc.create_array(pool / "u", (8, 8))
        for given, message in [
            ({"array": spec}, r"needs path=.*pool / \"u\""),
            ({"array": spec, "path": tmp_path / "u"}, "needs an array in a pool"),
            ({"array": u, "path": pool / "u"}, "arrays that do not exist yet"),
            ({"array": pool / "u", "servers": 2}, "arrays that do not exist yet"),
            ({"array": spec, "path": pool / "v", "servers": 0}, "at least 1, have 0"),
            ({"array": spec, "path": pool / "v", "servers": "many"}, "have 'many'"),
            ({"array": oc.ArraySpec((8, 8, 8)), "path": pool / "v"}, "dimensions"),
            ({"array": oc.ArraySpec((8, 8), mesh=2), "path": pool / "v"}, "disk_schema"),
        ]:
            with pytest.raises(InvalidError, match=message):
                oc.plan("write_all", **given, **among)
        u.close()


def test_nominal_rates_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    nominal = replace(NOMINAL, why_nominal="the disk is full")
    monkeypatch.setattr(collective_plan, "stored_or_measured", lambda path: nominal)
    among: Any = {"array": oc.ArraySpec((8, 8)), "schema": "block,*", "processes": 2}
    with in_memory() as directory, oc.Pool.embedded([directory / "a"]) as pool:
        plan = oc.plan("write_all", path=pool / "u", **among)
        assert plan.notes == nominal.notes
        assert "because none could be measured: the disk is full" in str(plan)
        assert oc.plan("write_all", path=pool / "u", rates=RATES, **among).notes == []
