"""Findings of the doctor, with real and with artificial facts."""

import dataclasses
import os
import resource
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from outcore._util import cgroups
from outcore._util.mounts import Mount, parse_mounts
from outcore.blas.blas_choice import BlasChoice, BlasReport
from outcore.errors import DiskFullError, NotFoundError, ReadOnlyError
from outcore.machine import doctor, machine, rates
from outcore.machine.doctor import Finding
from outcore.machine.processor import Peak, Use
from outcore.machine.rates import Measurement, Rates

GIB = 1 << 30

RATES = Rates(
    read_bytes_s=2e9,
    write_bytes_s=1e9,
    gemm_flops_s=dict.fromkeys(rates.DTYPES, 1e11),
    cores=2,
    threads=2,
    kernels="K",
    measured_at="2026-01-02T03:04:05+00:00",
    directory="/scratch",
)
OPENBLAS = BlasReport("openblas", "/lib/openblas.so", "0.3.30", "SkylakeX", 8, "pthreads")
CHOICE = BlasChoice("kept", None, "OpenBLAS's own choice is good on this processor", avx512=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def mount(fs_type: str, *options: str) -> Mount:
    return Mount("/scratch", fs_type, "/dev/disk", frozenset(options))


def only(findings: object) -> Finding:
    (finding,) = findings  # type: ignore[misc]
    assert isinstance(finding, Finding)
    return finding


def test_examine_covers_every_topic_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = doctor.examine(tmp_path, 0.4)
    topics = [finding.topic for finding in found.findings]
    for topic in ("versions", "BLAS", "threads", "memory", "swap", "file system", "free space"):
        assert topic in topics
    for topic in ("direct I/O", "load", "disk rates", "arithmetic", "balance"):
        assert topic in topics
    assert found.rates == rates.stored(tmp_path)
    assert not found.failed
    assert list(tmp_path.iterdir()) == []


def test_examine_needs_a_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="give one that exists"):
        doctor.examine(tmp_path / "missing")


def test_a_directory_that_cannot_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path) -> bool:
        raise ReadOnlyError(f"cannot write to {directory}; check its permissions")

    monkeypatch.setattr(machine, "direct_io_works", refuse)
    found = doctor.examine(tmp_path)
    assert found.failed
    assert found.rates is None
    assert found.findings[-1].fix == "check its permissions"


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: Path, seconds: float) -> Measurement:
        raise DiskFullError("need 8 bytes, have 7; free some room")

    monkeypatch.setattr(rates, "measured", refuse)
    found = doctor.examine(tmp_path)
    assert found.failed
    assert found.findings[-1] == Finding(
        "disk rates", "fail", "need 8 bytes, have 7", "free some room"
    )


@pytest.mark.parametrize(("level", "fix"), [("ok", "do this"), ("warn", "")])
def test_a_finding_has_a_fix_if_and_only_if_it_is_not_ok(level: doctor.Level, fix: str) -> None:
    with pytest.raises(ValueError, match="has a fix"):
        Finding("topic", level, "text", fix)


def test_good_kernels_are_ok() -> None:
    finding = only(doctor.judge_blas(CHOICE, OPENBLAS))
    assert finding.level == "ok"
    assert "openblas 0.3.30 with SkylakeX kernels" in finding.text


def test_kernels_that_outcore_chose_are_said() -> None:
    choice = dataclasses.replace(CHOICE, action="set", coretype="SkylakeX", reason="a reason")
    assert "outcore chose them: a reason" in only(doctor.judge_blas(choice, OPENBLAS)).text


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"coretype": "Haswell"}, "unset OPENBLAS_CORETYPE"),
        ({"already_loaded": "/lib/openblas.so"}, "import outcore before scipy"),
        ({}, "export OPENBLAS_CORETYPE=SkylakeX"),
    ],
)
def test_haswell_kernels_on_an_avx512_processor_are_warned_of(
    change: dict[str, str], fix: str
) -> None:
    old = dataclasses.replace(OPENBLAS, architecture="Haswell")
    finding = only(doctor.judge_blas(dataclasses.replace(CHOICE, **change), old))  # type: ignore[arg-type]
    assert (finding.level, finding.fix) == ("warn", fix)
    plain = dataclasses.replace(CHOICE, avx512=False)
    assert only(doctor.judge_blas(plain, old)).level == "ok"


def test_a_blas_that_says_nothing_is_warned_of() -> None:
    assert only(doctor.judge_blas(CHOICE, None)).level == "warn"


@pytest.mark.parametrize(
    ("threads", "cores", "quota", "environment", "level", "fix"),
    [
        (8, 8, None, {}, "ok", ""),
        (1, 8, None, {"OMP_NUM_THREADS": "1"}, "warn", "unset OMP_NUM_THREADS (now 1)"),
        (4, 8, None, {}, "warn", "export OPENBLAS_NUM_THREADS=8"),
        (8, 8, 2.0, {}, "warn", "export OPENBLAS_NUM_THREADS=2"),
        (2, 8, 2.0, {}, "ok", ""),
        (1, 8, 0.5, {}, "ok", ""),
    ],
)
def test_threads_are_held_against_processors_and_quota(
    threads: int,
    cores: int,
    quota: float | None,
    environment: dict[str, str],
    level: str,
    fix: str,
) -> None:
    report = dataclasses.replace(OPENBLAS, threads=threads)
    finding = only(doctor.judge_threads(report, cores, quota, environment))
    assert (finding.level, finding.fix) == (level, fix)


@pytest.mark.parametrize(
    ("library", "variable"),
    [("mkl", "MKL_NUM_THREADS"), ("blis", "BLIS_NUM_THREADS"), ("accelerated", "OMP_NUM_THREADS")],
)
def test_threads_are_set_as_the_library_wants_it(library: str, variable: str) -> None:
    report = dataclasses.replace(OPENBLAS, library=library, threads=4)
    finding = only(doctor.judge_threads(report, 8, None, {"OPENBLAS_NUM_THREADS": "4"}))
    assert finding.fix == f"export {variable}=8"
    finding = only(doctor.judge_threads(report, 8, None, {variable: "4"}))
    assert finding.fix == f"unset {variable} (now 4)"


def test_memory_and_its_limits() -> None:
    assert only(doctor.judge_memory(8 * GIB, 16 * GIB, [])).level == "ok"
    assert only(doctor.judge_memory(GIB // 2, 16 * GIB, [])).level == "warn"
    limits = [("/sys/fs/cgroup/a", 6 * GIB, 0), ("/sys/fs/cgroup", 1 << 50, 0)]
    plain, limited = doctor.judge_memory(4 * GIB, 16 * GIB, limits)
    assert plain.level == "ok"
    assert limited.level == "note"
    assert "/sys/fs/cgroup/a allows 6 GiB" in limited.text


def test_swap_in_use_is_warned_of() -> None:
    assert only(doctor.judge_swap(0, 0)).level == "ok"
    assert only(doctor.judge_swap(8 * GIB, 1000)).level == "ok"
    assert only(doctor.judge_swap(8 * GIB, 4 * GIB)).level == "warn"


def test_limits_of_the_process() -> None:
    unlimited = resource.RLIM_INFINITY
    assert only(doctor.judge_limits(4096, unlimited, unlimited)).level == "ok"
    found = list(doctor.judge_limits(256, GIB, GIB))
    assert [finding.fix for finding in found] == [
        "ulimit -n 4096",
        "ulimit -v unlimited",
        "ulimit -f unlimited",
    ]


@pytest.mark.parametrize(
    ("fs_type", "options", "level"),
    [
        ("ext4", ["rw"], "ok"),
        ("xfs", ["rw"], "ok"),
        ("ext4", ["ro"], "fail"),
        ("nfs4", ["rw"], "warn"),
        ("cifs", ["rw"], "warn"),
        ("fuse.sshfs", ["rw"], "warn"),
        ("lustre", ["rw"], "note"),
        ("tmpfs", ["rw"], "warn"),
        ("overlay", ["rw"], "note"),
        ("btrfs", ["rw"], "warn"),
        ("btrfs", ["rw", "nodatacow"], "ok"),
        ("zfs", ["rw"], "warn"),
        ("vfat", ["rw"], "warn"),
    ],
)
def test_file_systems(fs_type: str, options: list[str], level: str) -> None:
    finding = only(doctor.judge_file_system(mount(fs_type, *options), in_place=False))
    assert finding.level == level
    assert fs_type in finding.text


def test_btrfs_without_copy_on_write_is_ok() -> None:
    assert only(doctor.judge_file_system(mount("btrfs"), in_place=True)).level == "ok"
    assert only(doctor.judge_file_system(mount("zfs"), in_place=True)).level == "warn"


def test_an_unknown_mount_says_nothing() -> None:
    assert list(doctor.judge_file_system(None, in_place=False)) == []


def test_direct_io_and_space() -> None:
    assert only(doctor.judge_direct_io(True, mount("ext4"))).text == "works"
    assert "no disk" in only(doctor.judge_direct_io(True, mount("tmpfs"))).text
    assert only(doctor.judge_direct_io(False, mount("nfs"))).level == "warn"
    assert only(doctor.judge_space(100 * GIB)).level == "ok"
    assert only(doctor.judge_space(1000)).level == "warn"


QUIET = Use(2, others=0.05)
BUSY = Use(2, others=1.2, stolen=0.4)
PEAK = Peak(2, 2.5e9, 32, "AVX-512")
"""160 GFLOP/s."""


def slower(rate: float) -> Rates:
    return dataclasses.replace(RATES, gemm_flops_s=dict.fromkeys(rates.DTYPES, rate))


def test_the_load_is_said() -> None:
    assert only(doctor.judge_use(QUIET)).level == "ok"
    finding = only(doctor.judge_use(BUSY))
    assert finding.level == "warn"
    assert finding.text == (
        "busy now: other programs take 1.2 of 2 processors, the host of this virtual machine "
        "keeps 0.4"
    )
    assert "again when the machine is quiet" in finding.fix


@pytest.mark.parametrize(
    ("rate", "use", "level", "fix"),
    [
        (1e11, QUIET, "ok", ""),
        (1e11, BUSY, "ok", ""),
        (1.89e10, BUSY, "warn", "again when the machine is quiet"),
        (1.89e10, QUIET, "warn", "throttled"),
    ],
)
def test_arithmetic_is_held_against_the_processor(
    rate: float, use: Use, level: str, fix: str
) -> None:
    now = slower(rate)
    _, arithmetic, _ = doctor.judge_rates(Measurement(now, now, use), PEAK)
    assert arithmetic.level == level
    assert fix in arithmetic.fix
    assert "2 cores at 2.5 GHz with AVX-512 can do about 160 in float64" in arithmetic.text
    assert ("12% of the peak" in arithmetic.text) == (level == "warn")
    _, arithmetic, _ = doctor.judge_rates(Measurement(now, now, use), None)
    assert arithmetic.level == "ok", "a processor that is not known"


def test_better_rates_of_before_are_said_and_used() -> None:
    found = Measurement(dataclasses.replace(slower(1e10), write_bytes_s=2e8), RATES, BUSY)
    disk, arithmetic, balance = doctor.judge_rates(found, None)
    assert "writes 0.2 GB/s; the best measured here: reads 2 GB/s, writes 1 GB/s" in disk.text
    assert "float64 10, " in arithmetic.text
    assert "the best measured here: float32 100, float64 100" in arithmetic.text
    assert "200 columns" in balance.text


def test_rates_and_balance() -> None:
    disk, _, balance = doctor.judge_rates(Measurement(RATES, RATES, QUIET), None)
    assert disk.level == "ok"
    # 1e11 flop/s * 8 bytes / (2 flops * 2e9 bytes/s) = 200 columns.
    assert "200 columns" in balance.text
    slow = dataclasses.replace(RATES, write_bytes_s=2e7)
    slow_disk, *_ = doctor.judge_rates(Measurement(slow, RATES, QUIET), None)
    assert slow_disk.level == "warn"


def test_the_table_shows_levels_and_fixes() -> None:
    text = StringIO()
    findings = [Finding("disk", "warn", "slow", "buy another"), Finding("space", "ok", "much")]
    doctor.show(doctor.Examination("/", findings, None), Console(file=text, width=60))
    assert [line.split() for line in text.getvalue().splitlines()] == [
        ["warn", "disk", "slow"],
        ["→", "buy", "another"],
        ["ok", "space", "much"],
    ]


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /data rw,relatime shared:1 - nfs4 server:/x rw,vers=4.2
41 40 0:41 / /data/my\040disk rw - xfs /dev/vdb rw
42 27 0:42 / /data2 ro,relatime - btrfs /dev/vdc rw,ssd
43 42 0:43 / /data2 rw - ext4 /dev/vdd rw
not a line
"""


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [
        ("/home/me", "ext4"),
        ("/data", "nfs4"),
        ("/data/a", "nfs4"),
        ("/data/my disk/a", "xfs"),
        ("/data2/a", "ext4"),
        ("/database", "ext4"),
    ],
)
def test_the_deepest_and_latest_mount_counts(path: str, fs_type: str) -> None:
    found = machine.find_mount(Path(path), parse_mounts(MOUNTS))
    assert found is not None
    assert found.fs_type == fs_type


def test_options_of_mount_and_file_system_are_joined() -> None:
    read_only = parse_mounts(MOUNTS)[4]
    assert {"ro", "relatime", "ssd"} <= read_only.options


def test_facts_of_this_machine(tmp_path: Path) -> None:
    assert 1 <= machine.usable_cores() <= (os.cpu_count() or 1)
    assert machine.mount_of(tmp_path) is not None
    assert isinstance(machine.direct_io_works(tmp_path), bool)
    assert not machine.no_copy_on_write(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [28, 30, 5])
def test_a_page_that_cannot_be_written_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail(handle: int, pages: object, offset: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(OSError, match=";") as caught:
        machine.direct_io_works(tmp_path)
    assert type(caught.value).__name__ in {"DiskFullError", "ReadOnlyError", "DiskError"}
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_refuses_direct_io_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, pages: object, offset: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pwritev", refuse)
    assert not machine.direct_io_works(tmp_path)


def control_group(root: Path, membership: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "membership").write_text(membership)
    monkeypatch.setattr(cgroups, "ROOT", root)
    monkeypatch.setattr(cgroups, "_MEMBERSHIP", root / "membership")


def test_cpu_quota_of_version_2_is_the_tightest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_group(tmp_path, "0::/a/b\n", monkeypatch)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cgroups.cpu_quota() is None
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    assert cgroups.cpu_quota() == 1.5


def test_cpu_quota_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_group(tmp_path, "3:cpu,cpuacct:/hidden\n2:memory:/\n", monkeypatch)
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroups.cpu_quota() is None
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("400000\n")
    assert cgroups.cpu_quota() == 4


def test_memory_limits_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_group(tmp_path, "4:memory:/job\n0::/new\n", monkeypatch)
    old, new = tmp_path / "memory" / "job", tmp_path / "unified" / "new"
    for group in (old, new):
        group.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("1000\n")
    (old / "memory.usage_in_bytes").write_text("10\n")
    (new / "memory.max").write_text("2000\n")
    (new / "memory.current").write_text("20\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("10\n")
    assert sorted(doctor.budget.cgroup_limits()) == [(str(old), 1000, 10), (str(new), 2000, 20)]
