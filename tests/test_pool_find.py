"""Searches of pools: arrays and reports describe themselves; the verb; the index after damage."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import outcore
from metadata_store import opened
from mounted import counted
from served import Served

import outcore as oc
from outcore.errors import InvalidError
from outcore.layout.description import ATTRIBUTE
from outcore.linalg import cg, cond_est, gauss_seidel, gmres, lstsq, lu_factor
from outcore.pool.fsck import fsck
from outcore.report import report_file
from outcore.zarr_store import PoolStore


def names(pool: oc.Pool, where: str, path: str = "") -> list[str]:
    return [found.path.inside for found in pool.find(path, where)]


def test_arrays_groups_and_reports_are_found_by_their_metadata(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as pool:
        A = pool / "x12" / "A"
        oc.create_array(A, (40, 40), "c16", order="F", dims=("row", "column")).close()
        with oc.open_array(A, "r+") as array:
            array[:] = rng.normal(size=(40, 40)) + 9 * np.eye(40)
        _, report = oc.linalg.solve(A, np.ones(40), memory="1 MB", progress=False)
        report.save(pool / "x12" / "solve.report")
        with oc.create_array(pool / "steps", (0, 5), "f4", growing=True) as steps:
            steps.append(np.ones((2, 5), "f4"))
        oc.create_group(pool / "g", attributes={"a": 1})
        pool.open("notes", "w").close()

        assert names(pool, 'dtype = "c16" and shape[0] >= 40 and shape[1] < 41') == ["x12/A"]
        assert names(pool, 'dims[1] = "column" and size = 25600 and state = "complete"') == [
            "x12/A"
        ]
        assert names(pool, "steps = 2") == ["steps"]
        assert names(pool, 'kind = "group"') == ["g"]
        assert names(pool, 'kind = "file" and name ~ "*.json"', "x12/A") == ["x12/A/zarr.json"]
        (found,) = pool.find("/", 'kind = "report" and residual < 1e-12 and time > 0')
        assert found.path == pool / "x12" / "solve.report"
        assert found.kind == "report"
        assert found.fields["method"] == report.method
        assert found.fields["residual"] == report.backward_error
        pool.setxattr("x12/A", "run", b"x12")
        # A copy describes itself, also without the attributes; a killed fill does not look whole.
        oc.copy_files(A, pool / "copy", progress=False)
        assert names(pool, 'dtype = "c16"') == ["copy", "x12/A"]
        assert names(pool, 'attr.run ~ "x*"') == ["x12/A"]
        (found,) = pool.find(where='attr.run = "x12"')
        assert (found.nbytes, found.fields["shape"], found.kind) == (25600, [40, 40], "array")

        def stopped(rows: slice, columns: slice) -> np.ndarray:
            raise ValueError("stopped")

        with pytest.raises(ValueError, match="stopped"):
            oc.create_array(pool / "half", (40, 40), "f8", fill=stopped, progress=False)
        assert names(pool, 'state = "incomplete"') == ["half"]


def test_a_data_type_has_the_names_of_numpy_and_zarr(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        for dtype in ("c16", "f8", "f4", "i1", "bool"):
            oc.create_array(pool / dtype, (2,), dtype).close()
        for dtype in ("c16", "f8", "f4", "i1", "bool"):
            of_numpy = np.dtype(dtype)
            for name in (of_numpy.name, of_numpy.str, of_numpy.str[1:]):
                assert names(pool, f'dtype = "{name}"') == [dtype]
        assert names(pool, 'dtype != "float64" and ndim = 1') == ["bool", "c16", "f4", "i1"]
        assert names(pool, 'dtype ~ "f*"') == ["f4", "f8"]


def test_copied_and_replaced_reports_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its condition is infinite, which JSON cannot say.
    oc.from_array(9 * np.eye(40), tmp_path / "A", progress=False)
    _, report = oc.linalg.solve(tmp_path / "A", np.ones(40), memory="1 MB", progress=False)
    report = dataclasses.replace(report, condition=math.inf)
    (tmp_path / "runs").mkdir()
    report.save(tmp_path / "runs" / "report")
    (tmp_path / "runs" / "archive").write_bytes(b"PK\3\4" + bytes(26) + b"report.json, but damaged")
    report_file.write(tmp_path / "runs" / "odd", {"history": 5, "residual_norms": [1, "a"]}, None)
    monkeypatch.setattr(report_file, "_MOST_BYTES", 100_000)
    (tmp_path / "runs" / "long").write_bytes(
        (tmp_path / "runs" / "report").read_bytes() + bytes(100_000)
    )
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        oc.copy_files(tmp_path / "runs", pool / "runs", recursive=True, progress=False)
        assert names(pool, f'kind = "report" and method = "{report.method}"') == ["runs/report"]
        assert names(pool, "condition > 1e10") == ["runs/report"]
        pool.setxattr("runs/report", "run", b"x12")
        dataclasses.replace(report, condition=5.0).save(pool / "runs" / "report")
        assert names(pool, 'attr.run = "x12" and condition = 5') == ["runs/report"]
        assert names(pool, 'kind = "report"') == ["runs/report"]


def test_reports_are_found_by_method_residual_and_condition(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    a = rng.normal(size=(60, 60))
    a = a @ a.T + 60 * np.eye(60)
    b = rng.normal(size=60)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    tall = oc.from_array(np.vstack([a, a]), tmp_path / "tall", progress=False)
    found = {
        name: solver(A, b, progress=False)[1]
        for name, solver in (("cg", cg), ("gmres", gmres), ("gauss_seidel", gauss_seidel))
    }
    _, found["lstsq"] = lstsq(tall, rng.normal(size=120), progress=False)
    condition, found["cond_est"] = cond_est(lu_factor(A, progress=False), progress=False)
    assert condition == pytest.approx(np.linalg.cond(a, 1), rel=0.5)
    # A result that has been stopped has no backward error yet.
    found["stopped"] = dataclasses.replace(found["cg"], backward_error=None, history=[0.5, 0.25])
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        for name, report in found.items():
            report.save(pool / name)
        for name in ("gmres", "gauss_seidel"):
            assert names(pool, f'method = "{name}"') == [name]
        assert names(pool, 'method = "cg"') == ["cg", "stopped"]
        assert names(pool, "residual = 0.25") == ["stopped"]
        assert names(pool, "residual < 1e-4") == ["cg", "gauss_seidel", "gmres"]
        norm = max(found["lstsq"].residual_norms)
        assert names(pool, f"residual = {norm!r}") == ["lstsq"]
        assert names(pool, f"condition = {condition!r}") == ["cond_est"]
        assert names(pool, f"condition = {found['lstsq'].condition!r}") == ["lstsq"]
        assert names(pool, "condition < 1e6") == ["cond_est", "lstsq"]


def test_a_trace_in_the_place_of_a_report_is_no_report(tmp_path: Path) -> None:
    A = oc.from_array(9 * np.eye(40), tmp_path / "A", progress=False)
    _, report = oc.linalg.solve(A, np.ones(40), progress=False)
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        report.save(pool / "run")
        pool.setxattr("run", "run", b"x12")
        with oc.chrome_trace(pool / "run"):
            pass
        assert names(pool, 'kind = "report"') == []
        assert names(pool, 'kind = "file" and attr.run = "x12"') == ["run"]


def test_a_description_costs_no_request(tmp_path: Path) -> None:
    with counted(tmp_path) as served, oc.connect(served.served.url, key=served.served.key) as pool:
        before = served.requests(manager=True)
        oc.create_array(pool / "A", (40, 40), "f8").close()
        asked = served.requests(manager=True) - before
        # The generation and the metadata are renamed, and the shard is closed.
        changes = {"create": 3, "rename": 2, "wrote": 1}
        assert asked == changes | {"list": 2, "open": 1, "stat": 1}
        assert names(pool, 'state = "complete"') == ["A"]


def test_arrays_of_other_software_are_found(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        group = zarr.open_group(PoolStore(pool / "z"), mode="w")
        group.create_array("T", shape=(30, 40), chunks=(10, 20), dtype="f4")
        group.create_group("sub").create_array("b", shape=(7,), dtype="bool")
        assert names(pool, 'group = "z"') == ["z/T", "z/sub"]
        assert names(pool, 'shape[0] = 30 and dtype = "f4" and chunks[1] = 20') == ["z/T"]
        assert names(pool, 'group ~ "z/*" and size = 7 and dtype = "b1"') == ["z/sub/b"]
        group["T"].resize((50, 40))
        assert names(pool, "shape[0] = 50") == ["z/T"]
        # A copy has the description of its source, which no request reads again.
        oc.copy_files(pool / "z", pool / "copy", progress=False)
        assert names(pool, 'group ~ "copy*"') == ["copy/T", "copy/sub", "copy/sub/b"]
        assert fsck(pool).findings == ()


def test_fsck_describes_arrays(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        for name in ("older", "changed", "d/right"):
            oc.create_array(pool / name, (3, 4), "f8").close()
        pool.mkdir("gone")
        pool.removexattr("older", ATTRIBUTE)
        for name in ("changed", "gone"):
            pool.setxattr(name, ATTRIBUTE, b'{"kind": "array", "shape": [9, 9]}')
        assert names(pool, "shape[1] = 4") == ["d/right"]
        found = fsck(pool).findings
        assert [each.path for each in found] == ["changed", "gone", "older"]
        assert {each.kind for each in found} == {"old description"}
        assert "searches do not find it" in found[2].text
        assert fsck(pool, repair=True).is_well
        assert fsck(pool).findings == ()
        assert names(pool, "shape[1] = 4") == ["changed", "d/right", "older"]
        assert names(pool, "shape[1] = 9") == []


@pytest.mark.exhaustive(keep=0)
def test_a_search_may_have_many_hits(tmp_path: Path) -> None:
    count = 100_000
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        for number in range(count):
            pool.core.make_directory(f"{number % 100}/{number}")
        found = pool.find(where='kind = "directory" and path ~ "*/*"')
        assert len(found) == count
        expected = sorted(f"{number % 100}/{number}" for number in range(count))
        assert [each.path.inside for each in found] == expected


def test_a_search_sees_what_was_committed_before_it(served: Served) -> None:
    with (
        oc.connect(served.url, key=served.key) as one,
        oc.connect(served.url, key=served.key) as other,
    ):
        one.open("seen/f", "w").close()
        for number in range(5):
            one.setxattr("seen/f", "level", str(number).encode())
            assert names(other, f"attr.level = {number}", "seen") == ["seen/f"]
            assert names(other, f"attr.level < {number}", "seen") == []
        one.rm("seen", recursive=True)
        assert names(other, "attr.level >= 0") == []
        with pytest.raises(InvalidError, match=r"a field at character 15 of the query"):
            other.find(where="owner = 0 or (shap = 1)")


def test_the_verb_prints_paths_counts_and_the_wrong_character(served_here: Served) -> None:
    url = served_here.url
    with oc.connect(url, key=served_here.key) as pool:
        for name in ("find/b", "find/a", "find/new\nline"):
            pool.open(name, "w").close()
            pool.setxattr(name, "run", b"7")
    query = ("--where", "attr.run = 7")
    found = outcore("find", f"{url}/find", *query)
    assert found.exit_code == 0, found.stderr
    assert found.stdout == f"{url}/find/a\n{url}/find/b\n{url}/find/new\\nline\n"
    paths = outcore("find", f"{url}/find", *query, "--print0").stdout.split("\0")
    assert paths == [f"{url}/find/a", f"{url}/find/b", f"{url}/find/new\nline", ""]
    assert outcore("find", f"{url}/find", *query, "--count").stdout == "3\n"
    document = json.loads(outcore("find", f"{url}/find", *query, "--json").stdout)
    assert document["count"] == 3
    assert document["errors"] == []
    assert document["entries"][0]["path"] == f"{url}/find/a"
    assert document["entries"][0]["kind"] == "file"
    wrong = outcore("find", f"{url}/find", "--where", "attr.run == 7")
    assert wrong.exit_code == 1
    lines = wrong.stderr.splitlines()
    assert lines[:2] == ["attr.run == 7", "          ^"]
    assert "need a number, a time, or a text in quotes at character 11" in lines[2]
    # Some characters are printed as two, or have the width of two.
    odd = outcore("find", f"{url}/find", "--where", 'name = "\u5b57"\n and shap > 3')
    assert odd.stderr.splitlines()[:2] == ['name = "\u5b57"\\n and shap > 3', " " * 18 + "^"]
    nested = outcore("find", f"{url}/find/a", f"{url}/find", *query)
    assert nested.stdout == found.stdout, "each path once"
    plain = outcore("find", ".", "--where", "attr.run = 7")
    assert plain.exit_code == 1
    assert "searches are in pools only" in plain.stderr
    assert outcore("find", f"{url}/none").exit_code == 1


def test_fsck_rebuilds_a_lost_index(tmp_path: Path) -> None:
    places = [tmp_path / "a"]
    with oc.Pool.embedded(places) as pool:
        oc.create_array(pool / "d" / "A", (3, 4), "f8").close()
        pool.setxattr("d/A", "run", b"7")
        assert fsck(pool).is_well
    with opened(places[0]) as store:
        store.execute("DELETE FROM entries WHERE substr(key, 1, 1) IN (x'79', x'77')")
    with oc.Pool.embedded(places) as pool:
        assert names(pool, "attr.run = 7") == []
        assert {finding.kind for finding in fsck(pool).findings} == {"old index"}
        assert fsck(pool, repair=True).is_well
        assert fsck(pool).findings == ()
        assert names(pool, "attr.run = 7 and shape[1] = 4") == ["d/A"]
