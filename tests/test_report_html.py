"""Reports as web pages: the pictures show the measured figures."""

import base64
import importlib.metadata
import io
import json
import re
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib import image
from report_cases import A_FEW, APART, Page, many, report, spans

import outcore as oc
from outcore.cli import main
from outcore.linalg import lu_factor
from outcore.report import report_file
from outcore.report.heat_map import SHAPE, png
from outcore.report.lanes import BINS, FINE_BINS
from outcore.report.page import html_page, write_page
from outcore.report.report import Report
from outcore.report.spans import LANES, Spans
from outcore.report.svg import WIDTH, tick_step, ticks

# Sums over time and file offset.


def test_busy_time_and_rates_add_up() -> None:
    few = Spans.of(A_FEW)
    assert few.seconds == 4.25
    assert few.chosen("read").busy_seconds() == 1.5
    edges = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert few.chosen("read").busy(edges) == pytest.approx([1, 0, 0, 0.5])
    assert few.chosen("read").rate(edges) == pytest.approx([1000, 0, 0, 1000])
    assert few.chosen("write").rate(edges) == pytest.approx([0, 0, 1000, 1000])
    assert few.arrays() == [0, 1]


def test_a_heat_map_has_every_byte_in_its_place() -> None:
    few = Spans.of(A_FEW)
    cells = few.chosen("read").heat((4, 8), 4.0, 2000.0)
    expected = np.zeros((4, 8))
    expected[:2, :2] = 250  # 1000 bytes at offset 0, over the first second
    expected[2:, 6] = 500  # and 1000 above, over half a second
    assert cells == pytest.approx(expected)


def test_heat_maps_lose_no_bytes_and_make_none() -> None:
    rows = many(5000)
    reads = Spans.of(rows).chosen("read", 0)
    seconds = Spans.of(rows).seconds
    reach = float((reads.offset + reads.bytes).max())
    cells = reads.heat((37, 53), seconds, reach)
    assert cells.min() >= 0
    assert cells.sum() == pytest.approx(reads.bytes.sum(), rel=1e-6)
    # Compute the expected pixels row by row and column by column, slowly.
    rows_at, columns_at = np.linspace(0, reach, 38), np.linspace(0, seconds, 54)

    def overlaps(a: Any, b: Any, edges: Any) -> Any:
        inside = np.minimum(b[:, None], edges[1:]) - np.maximum(a[:, None], edges[:-1])
        return np.maximum(inside, 0) / (b - a)[:, None]

    by_row = overlaps(reads.offset, reads.offset + reads.bytes, rows_at)
    by_column = overlaps(reads.times[:, 0], reads.times[:, 1], columns_at)
    slow = (by_row * reads.bytes[:, None]).T @ by_column
    assert cells == pytest.approx(slow, rel=1e-4, abs=1e-4 * cells.max())


def test_transfers_too_short_to_be_seen_are_not_lost() -> None:
    at_once = Spans.of(spans(("read", 0, 0.0, 0.0, 0, 1), ("read", 0, 2.0, 2.0, 10**12, 4096)))
    cells = at_once.heat((100, 350), 2.5, 10**12 + 4096)
    assert cells.sum() == pytest.approx(4097, rel=1e-3)
    assert np.count_nonzero(cells) == 2


def test_damaged_times_do_not_stop_the_picture() -> None:
    backwards = spans(("read", 0, 3.0, 1.0, 0, 1000), ("read", 0, 2.0, 2.0, 0, 0))
    backwards = np.concatenate([backwards, np.array([[99, 5, 0, 2**63, 0, 2**63]], np.uint64)])
    Page(html_page(report(spans=backwards)))


def test_a_picture_is_a_png_that_others_read() -> None:
    levels = np.array([[0, 31], [16, 0], [1, 2]], np.uint8)
    pixels = image.imread(io.BytesIO(png(levels, "#2588c8")))
    assert pixels.shape == (3, 2, 4)
    assert pixels[:, :, 3] == pytest.approx(levels / 31, abs=0.003)
    assert pixels[0, 1, :3] == pytest.approx(np.array([0x25, 0x88, 0xC8]) / 255)


# The page


def picture_of(page: Page, which: int) -> Any:
    data = page.all("image")[which]["href"]
    assert data is not None
    kind, _, text = data.partition(",")
    assert kind == "data:image/png;base64"
    return image.imread(io.BytesIO(base64.b64decode(text)))


def test_a_page_needs_nothing_else() -> None:
    text = html_page(report())
    assert "http:" not in text
    assert "https:" not in text
    assert "//" not in re.sub(r"^ *//.*$", "", text.split("<script>")[1], flags=re.M)
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "data:").startswith("data:")
    assert not re.search(r"url\(|@import", text)
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert (policy["content"] or "").startswith("default-src 'none'; img-src data:;")


def test_a_page_holds_the_figures() -> None:
    given = report(notes=["resumed at panel 3 of 9; the figures are of the rest"], growth=12.5)
    page = Page(html_page(given))
    said = " ".join(page.words)
    for name, words in given.rows():
        assert name in said
        assert words in said
    assert given.notes[0] in said
    assert "disk: sync" in said
    assert "250 ms, 6%" in said, "of sync"
    assert page.words.count("measured") == 3
    assert page.words.count("planned") == 3
    assert page.words.count("lower bound") == 1


def test_bars_are_as_long_as_their_bytes() -> None:
    page = Page(html_page(report()))
    width = {
        name: [float(bar["width"] or 0) for bar in page.all("rect", class_=name)]
        for name in ("measured", "planned", "lower-bound")
    }
    assert width["measured"] == pytest.approx([WIDTH / 2, WIDTH / 2, WIDTH], abs=0.01)
    assert width["planned"] == pytest.approx(
        [WIDTH * x / 4000 for x in (1900, 2000, 3900)], abs=0.01
    )
    assert width["lower-bound"] == pytest.approx([WIDTH * 2400 / 4000], abs=0.01)


@pytest.mark.parametrize("known", [{"words_lower_bound": None}, {"planned_bytes_read": None}])
def test_what_is_not_known_has_no_bar(known: dict[str, None]) -> None:
    page = Page(html_page(report(**known)))
    assert page.words.count("lower bound") == (0 if "words_lower_bound" in known else 1)
    assert page.words.count("planned") == (3 if "words_lower_bound" in known else 1)


def test_every_picture_says_what_it_shows() -> None:
    page = Page(html_page(report(history=[1.0, 0.1])))
    pictures = page.all("svg", role="img")
    assert [svg["id"] for svg in pictures] == ["timeline", "heat-0", "heat-1", "bytes", "history"]
    names = {found.get("id") for _, found in page.elements}
    for svg in pictures:
        title, description = (svg["aria-labelledby"] or "").split()
        assert {title, description} <= names
    assert page.all("html", lang="en")
    said = " ".join(page.words)
    for axis in ("time, s", "offset in the file, KiB", "step", "residual"):
        assert axis in said
    assert all(button.get("aria-label") for button in page.all("button"))
    assert len({found["id"] for _, found in page.elements if "id" in found}) == sum(
        "id" in found for _, found in page.elements
    ), "names are used once"


def test_lanes_are_as_high_as_they_were_busy() -> None:
    page = Page(html_page(report(spans=APART)))
    for kind in LANES:
        (lane,) = page.all("path", **{"data-lane": kind})
        height = float(lane["data-height"] or 0)
        steps = re.findall(r"V([\d.]+)H([\d.]+)", lane["d"] or "")
        area = before = 0.0
        for y, x in steps:
            area += (height - float(y)) * (float(x) - before)
            before = float(x)
        busy = Spans.of(APART).chosen(kind).busy_seconds()
        assert area / height / WIDTH * 4.25 == pytest.approx(busy, abs=0.01)


def test_heat_maps_show_reads_and_writes_where_and_when_they_were() -> None:
    page = Page(html_page(report()))
    reads = picture_of(page, 0)[::-1, :, 3]  # of the matrix; the first row is at offset 0
    rows, columns = SHAPE
    assert reads.shape == SHAPE
    second = columns / 4.25
    assert reads[: rows // 2, : int(second)].min() > 0.5, "the first half, in the first second"
    assert reads[rows // 2 :, : int(3 * second)].max() == 0
    assert reads[rows // 2 :, int(3 * second) + 1 : int(3.5 * second)].min() > 0.5
    writes = picture_of(page, 1)[::-1, :, 3]  # of the factors: 2000 bytes from 4096 on
    assert writes[: int(rows * 4096 / 6096)].max() == 0
    assert writes[-1, int(2 * second) + 1 : int(4 * second)].min() > 0.5


def test_the_script_gets_the_lanes_in_fine_bins() -> None:
    page = Page(html_page(report(spans=APART)))
    data = json.loads(page.scripts[1])
    assert data["seconds"] == 4.25
    lanes = {name: np.frombuffer(base64.b64decode(text), np.uint8) for name, text in
             data["lanes"].items()}  # fmt: skip
    assert {len(lane) for lane in lanes.values()} == {FINE_BINS}
    for kind in LANES:
        busy = Spans.of(APART).chosen(kind).busy_seconds()
        assert lanes[kind].mean() / 255 * 4.25 == pytest.approx(busy, abs=0.01)
    read = (lanes["read-rate"] / 255 * data["most"]).mean() * 4.25
    assert read == pytest.approx(2000, rel=0.01)
    script = page.scripts[2]
    assert f"WIDTH = {WIDTH}, BINS = {BINS}" in script, "as the page was drawn"


def test_names_and_notes_cannot_become_markup() -> None:
    evil = '</script><b onclick="x">&amp;'
    given = report(
        verb=evil, dtype="float64", method=evil, kernels=evil, notes=[evil], arrays=[evil, evil]
    )
    text = html_page(given)
    page = Page(text)
    assert page.all("b") == []
    assert page.words.count(evil) == 2, "the method and the note"
    assert sum(evil in words for words in page.words) > 5
    assert "</script><b" not in text


def test_the_largest_trace_makes_a_small_page() -> None:
    given = report(spans=many(), history=list(np.geomspace(1, 1e-9, 100_000)))
    begun = time.process_time()
    text = html_page(given)
    assert len(text.encode()) < 2_000_000
    assert time.process_time() - begun < 30
    page = Page(text)
    assert any("may be recorded as one" in words for words in page.words)
    assert len(page.all("image")) == 4


def test_many_arrays_are_not_all_drawn() -> None:
    rows = spans(*(("read", k, k, k + 1, 0, 4096) for k in range(9)))
    page = Page(html_page(report(spans=rows)))
    assert len(page.all("image")) == 6
    assert "3 more arrays are not shown." in page.words
    assert "Reads and writes of array 4" in page.words


@pytest.mark.parametrize(
    "history",
    [[1.0], [0.0], [float("nan")] * 3, [1e-3] * 5, [1.0, float("inf"), 1e-300, 0.0, 2.0],
     [-1.0, 1.0]],
)  # fmt: skip
def test_any_history_is_drawn(history: list[float]) -> None:
    page = Page(html_page(report(history=history)))
    drawable = sum(0 < value < np.inf for value in history)
    assert len(page.all("circle", class_="residual")) == drawable
    assert "nan" not in " ".join(line["points"] or "" for line in page.all("polyline"))


def test_a_residual_is_where_its_axis_says() -> None:
    page = Page(html_page(report(history=[1e0, 1e-1, 1e-2, 1e-4])))
    dots = [(float(dot["cx"] or 0), float(dot["cy"] or 0)) for dot in page.all("circle")]
    x, y = zip(*dots, strict=True)
    assert np.diff(x) == pytest.approx([WIDTH / 4] * 3, abs=0.02)
    assert np.diff(y) == pytest.approx([55, 55, 110], abs=0.02)


@pytest.mark.parametrize("seconds", [1e-6, 0.05, 3.0, 599.0, 5000.0, 1e5])
def test_any_length_of_a_call_is_drawn(seconds: float) -> None:
    page = Page(html_page(report(spans=spans(("read", 0, 0.0, seconds, 0, 4096)))))
    unit = next(words for words in page.words if words.startswith("time, "))
    expected = {1e-6: "ms", 0.05: "ms", 5000.0: "min", 1e5: "h"}.get(seconds, "s")
    assert unit == f"time, {expected}"


def test_spans_without_any_time_are_drawn() -> None:
    Page(html_page(report(spans=spans(("sync", 0, 1.0, 1.0, 0, 0)))))


def test_ticks_are_round_and_few() -> None:
    for last in np.geomspace(1e-6, 1e9, 200):
        found = ticks(float(last), 8)
        assert 3 <= len(found) <= 9
        assert found[-1][0] <= last * (1 + 1e-9)
        assert [float(said) for _, said in found] == pytest.approx([at for at, _ in found])
    assert tick_step(10, 5) == 2
    assert ticks(10, 5)[-1] == (10, "10")


# The command line


def test_the_command_prints_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = report(n=77, spans=A_FEW)
    given.save("run.report")
    result = CliRunner().invoke(main, ["report", "run.report"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(str(given))
    assert "run.report.html has the timeline" in result.stdout
    assert "n = 77" in Page((tmp_path / "run.report.html").read_text()).words[0]
    result = CliRunner().invoke(main, ["report", "run.report", "-o", "there/page.html"])
    assert (tmp_path / "there/page.html").exists()


def test_the_command_speaks_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report(n=77).save("run.report")
    result = CliRunner().invoke(main, ["report", "run.report", "--json"])
    found = json.loads(result.stdout)
    assert (found["n"], found["page"]) == (77, None)
    assert [path.name for path in tmp_path.iterdir()] == ["run.report"]
    arguments = ["report", "run.report", "--json", "-o", "page.html"]
    assert json.loads(CliRunner().invoke(main, arguments).stdout)["page"] == "page.html"
    assert (tmp_path / "page.html").exists()


def test_the_command_draws_factors_too(tmp_path: Path) -> None:
    A = oc.from_array(np.eye(20) + 1, tmp_path / "A", order="F", progress=False)
    lu_factor(A, memory="1 MB", progress=False)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", str(tmp_path / "A.lu"), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert "lu, n = 20, float64" in Page(page.read_text()).words
    assert "has the figures, without a timeline; open it" in result.stdout


def test_a_page_says_of_what_when_and_where_it_is(tmp_path: Path) -> None:
    before = datetime.now().astimezone()
    A = oc.from_array(np.eye(20) + 1, tmp_path / "stiffness", order="F", progress=False)
    _, given = oc.linalg.solve(A, np.ones(20), memory="1 MB", progress=False)
    given.save(tmp_path / "r")
    found = Report.load(tmp_path / "r")
    words = " ".join(Page(html_page(found)).words)
    assert "solving with stiffness" in words
    assert f"on {socket.gethostname()}, outcore {importlib.metadata.version('outcore')}" in words
    ended = datetime.fromisoformat(found.finished)
    assert before.replace(microsecond=0) <= ended <= datetime.now().astimezone()
    assert found.finished.replace("T", " ") in words
    factors = oc.linalg.lu_factor(A, memory="1 MB", progress=False)
    assert "stiffness" in Report.load(factors.path).job
    # A report without these fields does not get the current machine's values.
    values = {name: value for name, value in given.to_dict().items()
              if name not in ("job", "finished", "host", "version")}  # fmt: skip
    report_file.write(tmp_path / "old", values, None)
    old = Report.load(tmp_path / "old")
    assert (old.job, old.finished, old.host, old.version) == ("", "", "", "")
    assert "outcore" not in str(old)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "text")])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path / 'text'} is not a report")
    result = CliRunner().invoke(main, ["report", str(tmp_path / "none"), "--json"])
    assert json.loads(result.stdout)["error"]["kind"] == "not_found"


def test_pages_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    made = report()
    write_page(made, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == html_page(made)
