"""Reports in files: saved reports load, and damaged ones raise errors."""

import html
import io
import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from report_cases import A_FEW, KINDS, Page, many, report

import outcore as oc
from outcore.errors import CorruptError, InvalidError, NotFoundError, OutcoreError
from outcore.linalg import lstsq, lu_factor, svd
from outcore.report import report_file
from outcore.report.page import html_page, write_page
from outcore.report.report import Report

FORMAT_PAGE = (Path(__file__).parent.parent / "docs/format.md").read_text()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    given = report(
        history=[1.0, 0.5, float("nan"), float("inf")], notes=["a < b"], arrays=["the <matrix>"],
        growth=2.5, m=60, method="slabs",
    )  # fmt: skip
    given.save(tmp_path / "r")
    found = Report.load(tmp_path / "r")
    assert np.array_equal(found.history, given.history, equal_nan=True)
    found.history = given.history
    assert found == given
    assert found.spans is not None
    assert found.spans.dtype == np.uint64
    assert np.array_equal(found.spans, A_FEW)
    assert str(found) == str(given)


def test_what_a_call_reports_is_saved_and_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    A = oc.from_array(rng.standard_normal((300, 300)), tmp_path / "A", order="F", progress=False)
    _, given = oc.linalg.solve(A, np.ones(300), memory="300 KB", progress=False)
    given.save(tmp_path / "r")
    found = Report.load(tmp_path / "r")
    assert found == given
    assert np.array_equal(found.spans, given.spans)  # type: ignore[arg-type]
    page = html_page(found)
    assert page == html_page(given)
    for _, said in given.rows():
        assert html.escape(said) in page
    assert len(Page(page).all("image")) == 3, "reads of the matrix; reads and writes of the factors"


def test_a_report_of_a_kind_is_loaded_as_that(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((40, 4))
    _, given = oc.linalg.lstsq(A, np.ones(40), progress=False)
    given.save(tmp_path / "r")
    assert oc.linalg.LeastSquaresReport.load(tmp_path / "r") == given
    given.rank = 4.5  # type: ignore[assignment]
    given.save(tmp_path / "r")
    with pytest.raises(CorruptError, match=r"rank is 4\.5"):
        oc.linalg.LeastSquaresReport.load(tmp_path / "r")


@pytest.mark.parametrize("none", [None, np.zeros((0, 6), np.uint64)])
def test_reports_without_spans_are_saved_and_drawn(none: Any, tmp_path: Path) -> None:
    report(spans=none).save(tmp_path / "r")
    found = Report.load(tmp_path / "r")
    assert found == report()
    assert found.spans is None or len(found.spans) == 0
    page = Page(html_page(found))
    assert "no spans" in " ".join(page.words)
    assert [svg["id"] for svg in page.all("svg", role="img")] == ["bytes"]


def test_ranks_residuals_and_errors_are_drawn_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((80, 5)) @ rng.standard_normal((5, 20))
    _, of_lstsq = lstsq(a, rng.standard_normal(80), progress=False)
    *_, of_svd = svd(a, 4, progress=False)
    for given, texts in (
        (of_lstsq, ["rank", "5", f"{of_lstsq.residual_norms[0]:.6g} in the 2-norm"]),
        (of_svd, [f"below {of_svd.error_bound:.3g} in the 2-norm", "in the Frobenius norm"]),
    ):
        given.save(tmp_path / "r")
        found = Report.load(tmp_path / "r")
        assert str(found) == str(given)
        page = html_page(found)
        assert all(html.escape(text) in page for text in texts)


def test_json_is_json(tmp_path: Path) -> None:
    """JSON has no infinite numbers."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    _, singular = lstsq(np.zeros((9, 3)), np.ones(9), progress=False)
    assert singular.condition == np.inf
    given = json.loads(singular.to_json(), parse_constant=refuse)
    assert given["condition"] is None
    assert given["rank"] == 0
    singular.save(tmp_path / "r")
    assert Report.load(tmp_path / "r").condition == np.inf
    said = outcore("report", tmp_path / "r", "--json").stdout
    assert json.loads(said, parse_constant=refuse)["condition"] is None


def test_links_are_followed_and_pipes_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "r").symlink_to(tmp_path / "there/real")
    (tmp_path / "page.html").symlink_to(tmp_path / "there/page")
    # Two reports may have different times.
    made = report()
    made.save(tmp_path / "r")
    write_page(made, tmp_path / "page.html")
    assert (tmp_path / "r").is_symlink()
    assert (tmp_path / "page.html").is_symlink()
    assert Report.load(tmp_path / "there/real") == report()
    assert (tmp_path / "there/page").read_text() == html_page(made)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidError, match="pipe"):
        report().save(tmp_path / "pipe")
    with pytest.raises(InvalidError, match="pipe"):
        write_page(report(), tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_saving_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    report(n=1).save(tmp_path / "r")
    report(n=2).save(tmp_path / "r")
    assert Report.load(tmp_path / "r").n == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    with pytest.raises(InvalidError, match="is a directory"):
        report().save(tmp_path)


def test_numbers_of_numpy_are_saved_as_plain_ones(tmp_path: Path) -> None:
    given = report(growth=np.float32(2.5), n=np.int64(50), history=list(np.array([0.5, 0.25])))
    given.save(tmp_path / "r")
    assert Report.load(tmp_path / "r") == given
    with pytest.raises(TypeError, match="plain values"):
        report(notes=[object()]).save(tmp_path / "r")


def test_the_file_is_what_its_page_says(tmp_path: Path) -> None:
    report().save(tmp_path / "r")
    with zipfile.ZipFile(tmp_path / "r") as archive:
        document = json.loads(archive.read("report.json"))
        rows = np.load(io.BytesIO(archive.read("spans.npy")))
    assert (document["format"], document["kind"]) == (1, "outcore report")
    assert document["report"]["bytes_read"] == 2000
    assert np.array_equal(rows, A_FEW)
    said = re.search(r"<!-- golden: kinds of spans -->\n(.*)", FORMAT_PAGE)
    assert said is not None
    assert tuple(re.findall(r"\d `(\w+)`", said[1])) == KINDS


def write(path: Path, document: Any, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("report.json", json.dumps(document))
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def test_a_later_format_is_refused_and_a_later_figure_is_not(tmp_path: Path) -> None:
    values = report().to_dict()
    document = {"format": 2, "kind": "outcore report", "report": values}
    with pytest.raises(InvalidError, match=r"format 2, this version .* reads format 1; upgrade"):
        Report.load(write(tmp_path / "r", document))
    document = {"format": 1, "kind": "outcore report", "report": values | {"colour": "red"}}
    assert Report.load(write(tmp_path / "r", document)) == report()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    ("values", "members"),
    [
        ({"n": "many"}, {}),
        ({"n": True}, {}),
        ({"history": [1.0, "x"]}, {}),
        ({"notes": "a note"}, {}),
        ({"growth": [1.0]}, {}),
        ({}, {"spans": npy(np.zeros((3, 5), np.uint64))}),
        ({}, {"spans": npy(np.zeros((3, 6)))}),
        ({}, {"spans": b"nothing"}),
    ],
)
def test_a_report_of_wrong_values_is_damaged(
    values: dict[str, object], members: dict[str, bytes], tmp_path: Path
) -> None:
    document = {"format": 1, "kind": "outcore report", "report": report().to_dict() | values}
    with pytest.raises(CorruptError, match="damaged report"):
        Report.load(write(tmp_path / "r", document, **members))


@pytest.mark.parametrize(
    "document", [[], {}, {"format": 1, "kind": "another", "report": {}},
                 {"format": 1, "kind": "outcore report", "report": {"n": 1}}],
)  # fmt: skip
def test_an_archive_of_something_else_is_damaged(document: Any, tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="damaged report"):
        Report.load(write(tmp_path / "r", document))


def test_no_flipped_byte_and_no_cut_goes_unnoticed(tmp_path: Path) -> None:
    """Each flip raises an error of outcore, or changes bytes without meaning, such as dates."""
    report().save(tmp_path / "r")
    whole = (tmp_path / "r").read_bytes()
    noticed = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        (tmp_path / "d").write_bytes(damaged)
        try:
            found = Report.load(tmp_path / "d")
        except OutcoreError:
            noticed += 1
        else:
            assert found == report()
            assert found.spans is None or np.array_equal(found.spans, A_FEW)
    assert noticed > 0.8 * len(whole)
    for length in range(0, len(whole), 7):
        (tmp_path / "d").write_bytes(whole[:length])
        with pytest.raises(CorruptError if length >= 4 else InvalidError, match="report"):
            Report.load(tmp_path / "d")


def test_what_is_no_report_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text")
    with pytest.raises(InvalidError, match="is not a report; write one with"):
        Report.load(tmp_path / "text")
    with pytest.raises(NotFoundError, match="no report at"):
        Report.load(tmp_path / "missing")
    with pytest.raises(NotFoundError, match="not a directory of complete factors"):
        Report.load(tmp_path)


def test_factors_hold_the_report_of_their_factorization(tmp_path: Path) -> None:
    A = oc.from_array(np.eye(20) + 1, tmp_path / "A", order="F", progress=False)
    given = lu_factor(A, memory="1 MB", progress=False).report
    found = Report.load(tmp_path / "A.lu")
    assert found == given
    assert found.spans is None


def test_spans_are_small_in_the_file(tmp_path: Path) -> None:
    report_file.write(tmp_path / "r", {}, many())
    size = (tmp_path / "r").stat().st_size
    assert size < struct.calcsize("<6Q") * (1 << 17) / 2
