"""The ways to solve A x = b side by side: the same matrix, fastest first, refusals with reasons."""

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner
from lu_by_method import RATES

import outcore as oc
from outcore.cli import main
from outcore.errors import BudgetError, InvalidError
from outcore.planning.methods import MethodPlan

N, MEMORY = 20_000, 400_000_000
VERBS = {
    "LU": ("solve", {}),
    "LU in single precision, refined": ("solve", {"factor_dtype": "f4"}),
    "Cholesky": ("solve", {"assume_a": "pos"}),
    "Gauss-Seidel": ("gauss_seidel", {"sweeps": 7}),
    "Jacobi": ("jacobi", {"sweeps": 7}),
    "CG": ("cg", {"iterations": 7}),
    "GMRES": ("gmres", {"iterations": 7}),
}


def compared(**options: Any) -> oc.MethodComparison:
    return oc.compare_methods(**{"n": N, "memory": MEMORY, "rates": RATES, "steps": 7} | options)


def by_name(found: oc.MethodComparison) -> dict[str, MethodPlan]:
    return {method.name: method for method in found.methods}


@pytest.mark.parametrize(
    "layout",
    [{}, {"order": "C"}, {"order": "F"}, {"order": "C", "chunks": (64, 512)},
     {"order": "F", "chunks": [512, 64]}],
)  # fmt: skip
def test_all_are_planned_for_the_same_matrix(layout: dict[str, Any]) -> None:
    found = by_name(compared(**layout, rhs=3))
    assert found.keys() == VERBS.keys()
    lying = {"order": "C"} | layout
    for name, (verb, options) in VERBS.items():
        planned = oc.plan(verb, n=N, memory=MEMORY, rhs=3, rates=RATES, **options, **lying)
        assert found[name].plan == planned, name
    if layout.get("chunks"):
        assert found["LU"].plan.bytes_read != by_name(compared())["LU"].plan.bytes_read


def test_the_default_is_what_create_array_makes(tmp_path: Any) -> None:
    A = oc.create_array(tmp_path / "A", (2000, 2000), reserve=False)
    found = compared(n=2000)
    assert (found.order, found.chunks) == (A.order, A.chunks)
    assert found == compared(n=2000, order=A.order, chunks=A.chunks)
    assert "order C, chunks of 256 x 2048" in str(found)
    assert compared(order="F").chunks == (2048, 256)


def test_lu_is_that_of_the_plan_of_lu() -> None:
    for layout in ({"order": "C", "chunks": (64, 512)}, {"order": "F", "chunks": (512, 64)}):
        lu = by_name(compared(**layout))["LU"].plan
        factoring = oc.plan("lu", n=N, memory=MEMORY, rates=RATES, **layout)  # type: ignore[arg-type]
        assert (lu.method, lu.disk_bytes) == (factoring.method, factoring.disk_bytes)
        assert lu.bytes_written == factoring.bytes_written
        assert lu.bytes_read > factoring.bytes_read, "and passes over the factors and A"
        assert lu.seconds > factoring.seconds


@pytest.mark.parametrize("slow", ["disk", "arithmetic"])
def test_the_fastest_comes_first(slow: str) -> None:
    rates = (
        dataclasses.replace(RATES, read_bytes_s=1e8, write_bytes_s=1e8)
        if slow == "disk"
        else dataclasses.replace(RATES, gemm_flops_s=dict.fromkeys(RATES.gemm_flops_s, 1e9))
    )
    found = compared(rates=rates)
    times = [method.plan.seconds for method in found.methods]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    first = found.methods[0]
    assert first.steps == 7 if slow == "arithmetic" else first.plan.seconds == min(times)
    winners = next(line for line in str(found).splitlines() if "fastest:" in line)
    assert first.name in winners
    assert str(found).index(first.name) < str(found).index(found.methods[-1].name)


def test_steps_to_win_are_those_of_the_direct_method() -> None:
    """LU takes 2n³/3 operations and Cholesky half: 533 s and 267 s, which hide the disk."""
    slow = dict.fromkeys(RATES.gemm_flops_s, 1e10)
    found = by_name(compared(rates=dataclasses.replace(RATES, gemm_flops_s=slow)))
    seconds = {name: method.plan.seconds for name, method in found.items()}
    assert seconds["LU"] == pytest.approx(2 * N**3 / 3 / 1e10, rel=0.2)
    assert seconds["Cholesky"] == pytest.approx(N**3 / 3 / 1e10, rel=0.2)
    for name, direct in (
        ("Gauss-Seidel", "LU"), ("Jacobi", "LU"), ("GMRES", "LU"), ("CG", "Cholesky"),
    ):  # fmt: skip
        assert found[name].steps == 7
        assert found[name].steps_to_win == int(7 * seconds[direct] / seconds[name])
    for name in ("LU", "Cholesky", "LU in single precision, refined"):
        assert (found[name].steps, found[name].steps_to_win) == (None, None)


def test_steps_to_win_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count how many sweeps of 2 s each fit in the time of LU."""
    times = {"solve": 91.0, "gauss_seidel": 14.0, "jacobi": 28.0, "cg": 7.0, "gmres": 700.0}

    def planned(verb: str, **options: Any) -> oc.Plan:
        seconds = times[verb]
        if options.get("assume_a") == "pos":
            seconds = 45.0
        if verb == "solve" and "factor_dtype" in options:
            raise BudgetError("need a million bytes, have one; raise memory=")
        return oc.Plan(verb, N, "float64", "", ".", 1, 1, 0, 0, 0, None, 0.0, 0.0, 0.0, seconds)

    monkeypatch.setattr("outcore.planning.methods.plan", planned)
    found = compared()
    assert [(m.name, m.plan.seconds, m.steps_to_win) for m in found.methods] == [
        ("CG", 7.0, 45),
        ("Gauss-Seidel", 14.0, 45),
        ("Jacobi", 28.0, 22),
        ("Cholesky", 45.0, None),
        ("LU", 91.0, None),
        ("GMRES", 700.0, 0),
    ]
    assert found.refused == {
        "LU in single precision, refined": "need a million bytes, have one; raise memory="
    }
    said = str(found)
    assert "LU in single precision, refined: need a million bytes" in said
    assert "fastest: CG, 7 steps; without steps: Cholesky; for any A: LU" in said


def test_what_needs_more_memory_is_refused_with_its_reason() -> None:
    found = compared(n=3000, memory=1_000_000)
    assert set(found.refused) == {"Gauss-Seidel", "Jacobi", "CG", "GMRES"}
    for name, why in found.refused.items():
        verb, options = VERBS[name]
        with pytest.raises(BudgetError) as refused:
            oc.plan(verb, n=3000, memory=1_000_000, rates=RATES, order="C", **options)
        assert why == str(refused.value)
        assert f"{name}: {why}" in str(found)
    assert {method.steps for method in found.methods} == {None}
    with pytest.raises(BudgetError, match="raise memory="):
        compared(memory=1000)


def test_single_precision_has_no_lower_one() -> None:
    for dtype, names in (("f8", 7), ("c16", 7), ("f4", 6), ("c8", 6)):
        found = compared(dtype=dtype)
        assert len(found.methods) + len(found.refused) == names, dtype


@pytest.mark.parametrize(
    "options", [{"order": "K"}, {"chunks": (3,)}, {"chunks": (0, 5)}, {"chunks": 5}, {"steps": 0}]
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        compared(**options)


# The command line.


def said(*arguments: object, verb: str = "solve") -> Any:
    given = ["plan", verb, "-n", str(N), "--memory", str(MEMORY), *map(str, arguments)]
    return CliRunner().invoke(main, given)


def test_the_command_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcore.planning.methods.stored_or_measured", lambda path: RATES)
    for given, options in (
        ((), {}),
        (("--steps", 5, "--rhs", 2), {"steps": 5, "rhs": 2}),
        (("--option", "order=F", "--option", "chunks=512,64"), {"order": "F", "chunks": (512, 64)}),
    ):
        expected = compared(**{"steps": 20} | options)
        result = said("--compare", *given)
        assert (result.exit_code, result.stdout) == (0, f"{expected}\n"), result.output
        found = json.loads(said("--compare", "--json", *given).stdout)
        assert found == json.loads(json.dumps(expected.to_dict()))
        assert found["order"] == options.get("order", "C")


def test_the_command_compares_for_whatever_solves() -> None:
    for verb, message in (("qr", "--compare is for solve, gauss_seidel"),):
        result = said("--compare", verb=verb)
        assert result.exit_code == 2
        assert message in result.stderr
    for given in (("--option", "sweeps=3"), ("--overwrite-a",), ("-m", 5), ("--method", "slabs")):
        result = said("--compare", *given)
        assert result.exit_code == 2
        assert "--compare goes with" in result.stderr
    result = said("--steps", 3)
    assert result.exit_code == 2
    assert "--steps goes with --compare" in result.stderr
