"""The C library: its calls in C programs, its examples, its installation, and its interface."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import command_line
import numpy as np
import pytest
from compiled_c import LIBRARY, ROOT, SANITIZED, STRICT, Compile, run
from served import Served
from test_mount_lock_failures import pool_at
from timeouts import HANG_S

import outcore as oc
from outcore._util import c_library

HEADER = ROOT / "crates/capi/include/outcore.h"
INTERFACE = ROOT / "crates/capi/interface.txt"
PAGE = ROOT / "docs/how-to/c.md"

TESTS = [
    "files", "shorter", "read_only", "reserve", "signs", "locks", "regions", "requests", "vectored",
    "names", "arrays",
    "mistakes", "fork", "threads", "versions",
]  # fmt: skip


@pytest.mark.parametrize("flags", [[], SANITIZED], ids=["plain", "sanitized"])
@pytest.mark.parametrize("test", TESTS)
def test_calls_embedded(test: str, flags: list[str], compiled: Compile, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *flags)
    run(program, test, tmp_path / "a", tmp_path / "b", cwd=tmp_path)


@pytest.mark.parametrize("test", TESTS)
def test_calls_served(test: str, compiled: Compile, served: Served, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    run(program, test, served.url, cwd=tmp_path, OUTCORE_KEY=str(served.key))


def test_a_sign_of_life_and_a_lock_outlive_a_restart(compiled: Compile, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    with pool_at(tmp_path, 2) as pool:
        url, key = pool.served.url.removesuffix("::"), str(pool.served.key)
        with subprocess.Popen(
            [program, "sign_kept", url], env=os.environ | {"OUTCORE_KEY": key},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            assert running.stdout.readline() == "given\n"
            other = subprocess.run(
                [program, "sign_kept", url], env=os.environ | {"OUTCORE_KEY": key},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert other.returncode == 1
            assert "have one of another; choose a random one" in other.stderr
            pool.manager.stop()
            pool.restart()
            _, errors = running.communicate("\n", timeout=HANG_S)
    assert running.returncode == 0, errors


def test_python_reads_what_c_writes(compiled: Compile, served: Served, tmp_path: Path) -> None:
    program = compiled(ROOT / "examples/c/columns.c", *SANITIZED)
    said = "2400000 bytes, sum of column 7: 7000\n"
    key = str(served.key)
    assert run(program, served.url, OUTCORE_KEY=key) == said
    with oc.connect(served.url, key=key) as pool, pool.open("sim/matrix.f8") as file:
        assert file.read_strided(7 * 8, 0, 8, 2, 2400).view("f8").tolist() == [7, 7]
        assert pool.stat("sim/matrix.f8").stripe_unit_bytes == 65536
    assert run(program, tmp_path / "own-1", tmp_path / "own-2") == said


def test_python_opens_arrays_of_c(compiled: Compile, served: Served, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    key = str(served.key)
    run(program, "arrays", served.url, OUTCORE_KEY=key)
    expected = np.arange(1500, dtype=np.int32).reshape(50, 30)
    expected[13:33, 5:15] = -1
    with oc.connect(served.url, key=key) as pool:
        for order in ("C", "F"):
            array = oc.open_array(pool / f"a{order}")
            assert (array.order, array.chunks, array.dtype) == (order, (16, 8), np.int32)
            np.testing.assert_array_equal(array[:], expected)
            array.close()
            found = pool.find(where=f'order = "{order}" and shape[1] = 30 and dtype = "i4"')
            assert [each.path for each in found] == [pool / f"a{order}"]
            # The creation, and one opening that wrote.
            with pool.open(f"a{order}/outcore.generation") as file:
                assert bytes(file.read()) == b"2"


@pytest.mark.parametrize(
    ("dtype", "order", "chunk_order"),
    [("f8", "C", "hilbert"), ("i2", "F", None), ("c16", "C", "z-order"), ("f8", "C", None)],
)
def test_c_opens_arrays_of_python(
    dtype: str, order: str, chunk_order: str | None, compiled: Compile, served: Served
) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    key = str(served.key)
    with oc.connect(served.url, key=key) as pool:
        array = oc.create_array(
            pool / "made", (9, 7), dtype, chunks=(2, 3), order=order, chunk_order=chunk_order,
            dims=["row", "column"], attributes={"unit": "m"},
        )  # fmt: skip
        array[:] = np.arange(63).reshape(9, 7) * (1 + 1j if dtype == "c16" else 1)
        expected = array[1:4, 2:4].tobytes().hex()
        array.close()
    assert run(program, "print", served.url, OUTCORE_KEY=key) == expected


def test_a_link_to_a_missing_file_leads_to_a_new_one(compiled: Compile, served: Served) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    with oc.connect(served.url, key=served.key) as pool:
        pool.symlink("target", "link")
        pool.symlink("missing/target", "astray")
        run(program, "links", served.url, OUTCORE_KEY=str(served.key))
        assert (pool / "target").read_bytes() == b"through"
        assert (pool / "link").is_symlink()
        assert sorted(pool.ls()) == ["astray", "link", "target"]


def test_c_refuses_arrays_that_it_cannot_read(compiled: Compile, served: Served) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    key = str(served.key)
    with oc.connect(served.url, key=key) as pool:
        oc.create_array(pool / "growing", (0, 4), "f8", growing=True).close()
        half = oc.create_array(pool / "half", (4, 4), "f8")
        half.mark("incomplete", "why")
        half.close()
        oc.create_array(pool / "foreign", (4, 4), "f8").close()
        with pool.open("foreign/zarr.json") as file:
            text = bytes(file.read())
        with pool.open("foreign/zarr.json", "w") as file:
            file.write(text.replace(b'"fill_value": 0.0', b'"fill_value": 1.0'))
    run(program, "refused", served.url, OUTCORE_KEY=key)


def test_a_wrong_key_is_refused(compiled: Compile, served: Served, tmp_path: Path) -> None:
    program = compiled(ROOT / "examples/c/columns.c", *SANITIZED)
    wrong = tmp_path / "wrong.key"
    wrong.touch(0o600)
    wrong.write_text(f"outcore-pool-key-1 {'00' * 32}\n")
    done = subprocess.run(
        [program, served.url], env=os.environ | {"OUTCORE_KEY": str(wrong)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("outcore_pool_connect"), done.stderr
    assert "Permission denied" in done.stderr


def test_the_program_of_the_page_runs(compiled: Compile, served: Served, tmp_path: Path) -> None:
    blocks = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "hello.c").write_text(next(block for block in blocks if "main(" in block))
    program = compiled(tmp_path / "hello.c", *SANITIZED)
    assert run(program, served.url, OUTCORE_KEY=str(served.key)) == "pool\n"


def test_the_library_is_installed_as_its_description_says(prefix: Path, tmp_path: Path) -> None:
    version = f"{oc.__version__}".split("+")[0]
    assert run("readelf", "-d", prefix / "lib/liboutcore.so").count("[liboutcore.so.0]") == 1
    assert (prefix / "lib/liboutcore.so.0").resolve().name == f"liboutcore.so.{version}"
    description = (prefix / "lib/pkgconfig/outcore.pc").read_text()
    assert f"prefix={prefix}\n" in description
    assert f"Version: {version}\n" in description
    if shutil.which("pkg-config"):
        flags = run(
            "pkg-config", "--cflags", "--libs", "outcore", PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig"
        )
        assert flags.split() == [f"-I{prefix}/include", f"-L{prefix}/lib", "-loutcore"]


def test_the_package_has_the_library_and_prints_its_flags(tmp_path: Path) -> None:
    package = Path(oc.__file__).parent / "_c"
    outcore = (sys.executable, "-m", "outcore")
    flags = run(*outcore, "--cflags", "--libs").split()
    assert flags[0] == f"-I{package}/include"
    source = ROOT / "tests/c_library/calls.c"
    run("cc", *STRICT, source, *flags, "-lpthread", "-o", tmp_path / "calls")
    run(tmp_path / "calls", "files", tmp_path / "a", tmp_path / "b")
    assert run(*outcore, "--libs").split() == flags[1:]
    directory = run(*outcore, "--pkgconfigdir").strip()
    assert (
        f"Version: {oc.__version__}".split("+")[0] in (Path(directory) / "outcore.pc").read_text()
    )
    if shutil.which("pkg-config"):
        wanted = run("pkg-config", "--cflags", "--libs", "outcore", PKG_CONFIG_PATH=directory)
        run("cc", *STRICT, source, *wanted.split(), "-lpthread", "-o", tmp_path / "again")
        run(tmp_path / "again", "files", tmp_path / "c")


def test_a_package_without_the_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_library, "_DIRECTORY", tmp_path)
    for flag in ("--cflags", "--libs", "--pkgconfigdir"):
        result = command_line.outcore(flag)
        assert result.exit_code == 1
        assert "need the C library liboutcore.so.0, have none" in result.stderr
    assert "go without a verb" in command_line.outcore("--libs", "ls").stderr
    assert "COMMAND [ARGS]..." in command_line.outcore("--help").stdout


def test_cplusplus_takes_the_header(tmp_path: Path) -> None:
    (tmp_path / "it.c").write_text(
        'extern "C++" { template <int> struct it; }\n#include <outcore.h>\n'
    )
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    run(
        compiler,
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        "-x",
        "c++",
        f"-I{HEADER.parent}",
        tmp_path / "it.c",
    )


def declarations(header: str) -> list[str]:
    """Return the declarations of the header, each in one line."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*$", "", header, flags=re.DOTALL | re.MULTILINE)
    code = code.replace('extern "C" {', "").replace("}  ", "}")
    flat = re.sub(r"\s+", " ", code)
    return [text.strip() for text in re.findall(r"typedef struct \w+ \{.*?\} \w+;|[^;{}]+;", flat)]


def layouts(header: str, folder: Path) -> list[str]:
    """Return the size of each structure of the header, and the places of its members."""
    lines = ["#include <stdio.h>", "#include <outcore.h>", "int main(void) {"]
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", header, re.DOTALL):
        lines.append(f'printf("{name}: %zu bytes\\n", sizeof({name}));')
        for member in re.findall(r"(\w+)(?:\[\d+\])?;", re.sub(r"//[^\n]*", "", body)):
            place = f"offsetof({name}, {member}), sizeof((({name} *)0)->{member})"
            lines.append(f'printf("{name}.{member}: %zu, %zu bytes\\n", {place});')
    (folder / "layouts.c").write_text("\n".join([*lines, "return 0;", "}"]))
    run("cc", f"-I{HEADER.parent}", folder / "layouts.c", "-o", folder / "layouts")
    return run(folder / "layouts").splitlines()


def test_the_interface_has_not_changed(tmp_path: Path) -> None:
    """If a line changes or vanishes, raise OUTCORE_INTERFACE and the SONAME: programs break."""
    header = HEADER.read_text()
    found = [*declarations(header), *layouts(header, tmp_path)]
    if "OUTCORE_WRITE_INTERFACE" in os.environ:
        INTERFACE.write_text("\n".join(found) + "\n")
    assert found == INTERFACE.read_text().splitlines()


def test_the_library_exports_what_the_header_declares() -> None:
    symbols = run("nm", "-D", "--defined-only", LIBRARY).split()[2::3]
    declared = re.findall(r"^[^/\n]*\b(outcore_\w+)\(", HEADER.read_text(), re.MULTILINE)
    assert sorted(symbols) == sorted(set(declared))


def test_every_function_passes_the_boundary() -> None:
    """The boundary refuses NULL handles and forked processes, and stops panics."""
    plain = {"outcore_version", "outcore_interface", "outcore_error_text", "outcore_array_type"}
    sources = "".join(path.read_text() for path in (ROOT / "crates/capi/src").glob("*.rs"))
    functions = re.findall(
        r'extern "C" fn (outcore_\w+)\((.*?)^\}', sources, re.DOTALL | re.MULTILINE
    )
    # Bodies that several functions share, which pass it themselves.
    shared = re.findall(
        r"unsafe fn (started|collective)<H: Handle>\((.*?)^}", sources, re.DOTALL | re.M
    )
    assert [bool(re.search(r"\bcall\(", body)) for _, body in shared] == [True, True]
    passes = r"\b(call|count|release|make|started|collective)\("
    outside = {name for name, body in functions if not re.search(passes, body)}
    assert len(functions) > 50
    assert outside == plain
