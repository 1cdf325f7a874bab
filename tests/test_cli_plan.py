"""``outcore plan`` for each verb prints the result of `oc.plan`; options are as in Python."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lu_by_method import RATES

import outcore as oc
from outcore.cli import main

MEMORY = "8MB"
CASES: list[tuple[str, list[object], dict[str, Any]]] = [
    ("qr", ["-m", 20_000, "-n", 100], {"m": 20_000, "n": 100}),
    (
        "qr",
        ["-m", 20_000, "-n", 100, "--option", "mode=economic", "--option", "order=F"],
        {"m": 20_000, "n": 100, "mode": "economic", "order": "F"},
    ),
    ("svd", ["-m", 20_000, "-n", 500, "-k", 5, "--option", "power=1"],
     {"m": 20_000, "n": 500, "k": 5, "power": 1}),
    ("svd", ["-m", 20_000, "-n", 500, "-k", 5, "--option", "out=true"],
     {"m": 20_000, "n": 500, "k": 5, "out": True}),
    ("gram", ["-m", 20_000, "-n", 100, "--dtype", "c16"], {"m": 20_000, "n": 100, "dtype": "c16"}),
    ("gram", ["-m", 500, "-n", 2000, "--option", "out=true", "--option", "triangle=lower"],
     {"m": 500, "n": 2000, "out": True, "triangle": "lower"}),
    ("matmul", ["-m", 900, "-n", 1200, "-k", 700], {"m": 900, "n": 1200, "k": 700}),
    (
        "matmul",
        ["-m", 900, "-n", 1200, "-k", 700, "--option", "order_a=C", "--option", "chunks_b=64,512"],
        {"m": 900, "n": 1200, "k": 700, "order_a": "C", "chunks_b": (64, 512)},
    ),
    ("lstsq", ["-m", 20_000, "-n", 100, "--rhs", 4], {"m": 20_000, "n": 100, "rhs": 4}),
    ("solve_triangular", ["-n", 2000, "--option", "lower=true"], {"n": 2000, "lower": True}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    # The name of the module is also that of a function.
    module = importlib.import_module("outcore.planning.plan")
    monkeypatch.setattr(module, "stored_or_measured", lambda path: RATES)


def said(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


@pytest.mark.parametrize(("verb", "arguments", "options"), CASES)
def test_it_is_the_plan_of_python(
    verb: str, arguments: list[object], options: dict[str, Any], tmp_path: Path
) -> None:
    expected = oc.plan(verb, memory=MEMORY, path=tmp_path, rates=RATES, **options)
    given = [verb, *arguments, "--memory", MEMORY, tmp_path]
    result = said(*given)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{expected}\n"
    found = json.loads(said(*given, "--json").stdout)
    assert found == json.loads(json.dumps(expected.to_dict()))
    assert (found["m"], found["n"], found["k"]) == tuple(map(options.get, ("m", "n", "k")))


def test_what_a_verb_does_not_have_is_refused() -> None:
    for arguments, why in (
        (["qr", "-n", 100], "needs m="),
        (["svd", "-n", 100, "-m", 2000], "needs k="),
        (["gram", "-n", 100, "-m", 2000, "-k", 3], "has no k="),
        (["qr", "-n", 100, "-m", 2000, "--option", "shift=1"], "no option 'shift'"),
        (["lu", "-n", 100, "-m", 2000], "is square"),
        (["export_lapack", "-n", 100, "--processes", "1,4"], "no option 'processes'"),
        (["export_lapack", "-n", 100, "--link", "1GB/s"], "no option 'link'"),
    ):
        result = said(*arguments, "--memory", MEMORY)
        assert result.exit_code == 1
        assert why in result.stderr, result.stderr


def test_a_budget_that_is_too_small_is_refused() -> None:
    result = said("qr", "-m", 20_000, "-n", 1000, "--memory", "1MB")
    assert result.exit_code == 1
    assert "raise memory=" in result.stderr


@pytest.mark.parametrize("given", [["--processes", "4"], ["--link", "1GB/s"]])
def test_a_comparison_of_methods_refuses_processes(given: list[str]) -> None:
    result = said("lu", "-n", 100, "--memory", MEMORY, "--compare", *given)
    assert result.exit_code == 2
    assert given[0] in result.stderr, result.stderr


def test_plans_of_several_processes_are_for_other_machines_too() -> None:
    given = ["lu", "-n", 2_000_000, "--memory", "2TB"]
    for one in ([], ["--processes", "1"]):
        alone = said(*given, *one)
        assert alone.exit_code == 1
        assert " available; choose a smaller memory=" in alone.stderr, alone.stderr
    for processes in ("2", "1,2"):
        result = said(*given, "--processes", processes)
        assert result.exit_code == 0, result.output


def test_a_plan_of_several_processes_names_its_bound() -> None:
    given = ["lu", "-n", 20_000, "--memory", "200MB", "--processes", "8", "--link", "1MB/s"]
    assert "\n  bound        network" in said(*given).stdout
    found = json.loads(said(*given, "--json").stdout)
    parts = {"arithmetic": "compute", "disk": "io", "network": "network"}
    assert found["bound"] == max(parts, key=lambda part: found[f"{parts[part]}_seconds"])
