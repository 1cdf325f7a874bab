"""The choice of the BLAS's kernels, and of its threads."""

import os
import subprocess
import sys

import pytest

from outcore.blas import blas_choice

CHOOSE = """
import os, sys
{before}
from outcore.blas import blas_choice
choice = blas_choice.choose()
assert choice is blas_choice.choose()
report = blas_choice.scipy_blas()
print(choice.action, choice.coretype, os.environ.get("OPENBLAS_CORETYPE"),
      report and report.architecture, sep="|")
"""


def choose(before: str = "", **environment: str) -> list[str]:
    """Run `choose` in a fresh process; return its action, core type, variable, kernels."""
    dropped = ("OPENBLAS_CORETYPE", "OUTCORE_BLAS")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    out = subprocess.run(
        [sys.executable, "-c", CHOOSE.format(before=before)],
        env=env | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.strip().split("|")


def test_choice_respects_the_variable() -> None:
    action, coretype, variable, kernels = choose(OPENBLAS_CORETYPE="Haswell")
    assert (action, coretype, variable) == ("kept", "Haswell", "Haswell")
    if blas_choice.choose().avx512:
        assert kernels == "Haswell"


def test_choice_can_be_declined() -> None:
    assert choose(OUTCORE_BLAS="keep")[:3] == ["kept", "None", "None"]


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "18"), ({"OPENBLAS_THREAD_TIMEOUT": "26"}, "26"), ({"OUTCORE_BLAS": "keep"}, "None")],
)
def test_idle_threads_of_the_blas_spin_shortly(given: dict[str, str], found: str) -> None:
    dropped = ("OPENBLAS_THREAD_TIMEOUT", "OUTCORE_BLAS")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    code = "import os, outcore; print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))"
    out = subprocess.run(
        [sys.executable, "-c", code], env=env | given, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == found


def test_choice_comes_too_late_after_scipy() -> None:
    assert choose("import scipy.linalg")[:3] == ["kept", "None", "None"]


def test_choice_where_nothing_stands_against_it() -> None:
    action, coretype, variable, kernels = choose()
    assert coretype == variable
    if action == "set":
        assert coretype == kernels == "SkylakeX"


@pytest.mark.parametrize(
    ("vendor", "flags", "version", "action"),
    [
        ("AuthenticAMD", "avx512f avx512dq avx512bw avx512vl", "0.3.30", "set"),
        ("AuthenticAMD", "avx512f avx512dq avx512bw avx512vl", "0.3.31.188.0", "set"),
        ("AuthenticAMD", "avx512f avx512dq avx512bw avx512vl", "0.3.32", "kept"),
        ("AuthenticAMD", "avx512f avx512dq avx512bw avx512vl", None, "kept"),
        ("AuthenticAMD", "avx512f avx512dq avx512bw", "0.3.30", "kept"),
        ("GenuineIntel", "avx512f avx512dq avx512bw avx512vl", "0.3.30", "kept"),
    ],
)
def test_choice_by_processor(
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    flags: str,
    version: str | None,
    action: str,
) -> None:
    # Set first, so that the fixture restores the variable after `choose` changed it.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    monkeypatch.delenv("OUTCORE_BLAS", raising=False)
    found = (vendor, "a processor", frozenset(flags.split()))
    monkeypatch.setattr(blas_choice, "_read_cpu", lambda: found)
    monkeypatch.setattr(blas_choice, "_built_with", lambda: version)
    monkeypatch.setattr(blas_choice, "_loaded_openblas", lambda: None)
    choice = blas_choice.choose.__wrapped__()
    assert choice.action == action
    assert choice.coretype == ("SkylakeX" if action == "set" else None)


def test_choice_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(blas_choice, "_read_cpu", fail)
    choice = blas_choice.choose.__wrapped__()
    assert choice.action == "kept"
    assert "no such thing" in choice.reason


def test_only_libraries_scipy_may_use_count() -> None:
    site = "/usr/lib/python3/site-packages"
    scipys = blas_choice._may_be_scipys
    assert scipys(f"{site}/scipy.libs/libscipy_openblas-6cdc3b4a.so")
    assert scipys(f"{site}/scipy/.dylibs/libscipy_openblas.dylib")
    assert scipys("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0")
    assert not scipys(f"{site}/numpy.libs/libscipy_openblas64_-32a4b2a6.so")
    assert not scipys(f"{site}/numpy/.dylibs/libscipy_openblas64_.dylib")


def test_threads_of_scipys_blas() -> None:
    report = blas_choice.scipy_blas()
    if report is None:
        pytest.skip("SciPy's BLAS cannot be controlled")
    assert report.threads >= 1
    assert "numpy.libs" not in report.path
    with blas_choice.threads(1):
        now = blas_choice.scipy_blas()
        assert now is not None
        assert now.threads == 1
    with blas_choice.threads(None):
        pass
    after = blas_choice.scipy_blas()
    assert after == report
    with pytest.raises(ValueError, match="at least 1"):
        blas_choice.set_threads(0)


def test_of_two_numbers_of_threads_at_once_the_one_before_both_is_restored() -> None:
    """With two nested settings, either may end first."""
    before = blas_choice.in_use()[1]
    if blas_choice.set_threads(before) is None:
        pytest.skip("SciPy's BLAS cannot be controlled")
    for is_first_out in (True, False):
        first, second = blas_choice.threads(3), blas_choice.threads(2)
        first.__enter__()
        second.__enter__()
        assert blas_choice.in_use()[1] == 2
        (first if is_first_out else second).__exit__(None, None, None)
        assert blas_choice.in_use()[1] == (2 if is_first_out else 3)
        (second if is_first_out else first).__exit__(None, None, None)
        assert blas_choice.in_use()[1] == before
