"""Plans of permutations by bits: their bytes and requests are those of the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore.machine.rates import NOMINAL
from outcore.permutations import geometry
from outcore.permutations.bit_matrices import BIT_KINDS

QUIET: dict[str, Any] = {"progress": False}
LEAST = 2048


COUNTS = ("passes", "request_bytes", "bytes_read", "reads", "bytes_written", "writes")


def test_requests_of_vectors_end_at_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "LEAST_REQUEST_BYTES", 256 << 10)
    data = np.arange(1 << 17, dtype="f4")
    oc.from_array(data, tmp_path / "A", chunks=1 << 14, **QUIET).close()
    call: dict[str, Any] = {"kind": "reverse", "chunks": 1 << 13, "memory": "4 MB"}
    plan = oc.plan("permute", source=tmp_path / "A", path=tmp_path / "B", rates=NOMINAL, **call)
    with oc.permute(tmp_path / "A", tmp_path / "B", **call, **QUIET) as found:
        np.testing.assert_array_equal(found[...], data[::-1])
    # Chunks of 64 KiB are read, and chunks of 32 KiB written.
    expected = (1, 32 << 10, data.nbytes, 8, data.nbytes, 16)
    assert plan.is_exact
    assert tuple(getattr(plan, name) for name in COUNTS) == expected
    assert tuple(getattr(found.report, name) for name in COUNTS) == expected


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw layouts of whole pages or of parts of them; chunks of a vector have any length."""
    extents = draw(st.sampled_from([(15,), (15,), (7, 8), (5, 4, 6)]))

    def chunks() -> tuple[int, ...]:
        if len(extents) == 1:
            return (draw(st.one_of(st.integers(100, 1 << 15), st.sampled_from([1 << 9, 1 << 12]))),)
        return tuple(1 << draw(st.integers(max(n - 4, 0), n)) for n in extents)

    return {
        "shape": tuple(1 << n for n in extents),
        "dtype": draw(st.sampled_from(["i1", "f4", "f8", "c16"])),
        "source": {"chunks": chunks(), "order": draw(st.sampled_from("CF"))},
        "target": {"chunks": chunks(), "order": draw(st.sampled_from("CF"))},
        "kind": draw(st.sampled_from(["reverse", "transpose", *BIT_KINDS])),
        "memory": draw(st.sampled_from([200 << 10, 400 << 10, 2 << 20])),
    }


@given(call=layouts())
@examples(30)
def test_exact_plans_are_those_of_the_report(
    call: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("counted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "LEAST_REQUEST_BYTES", LEAST)
        _check(call, path)


def _check(call: dict[str, Any], path: Path) -> None:
    data = np.zeros(call["shape"], call["dtype"])
    options = {"kind": call["kind"], "memory": call["memory"], **call["target"]}
    with oc.from_array(data, path / "A", **call["source"], **QUIET) as source:
        plan = oc.plan("permute", source=source, path=path / "B", rates=NOMINAL, **options)
        with oc.permute(source, path / "B", **options, **QUIET) as found:
            if plan.is_exact:
                for name in COUNTS:
                    assert getattr(found.report, name) == getattr(plan, name), name
    assert plan.is_exact or "about" in str(plan)
