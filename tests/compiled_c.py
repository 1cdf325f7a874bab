"""Programs in C with the C library, as the tests compile and run them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from timeouts import HANG_S

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "target/release/liboutcore.so"

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_DEFAULT_SOURCE"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

Compile = Callable[..., Path]


def run(*command: str | Path, cwd: Path | None = None, **more: str) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | more,
        capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(prefix: Path) -> Path:
    """Install the library, as `make install` does."""
    assert LIBRARY.exists(), "need the C library, have none; make setup"
    run(ROOT / "tools/install-c-library", prefix)
    return prefix


def compiler(prefix: Path, folder: Path) -> Compile:
    """Return a function that compiles a program once, and links it to the installed library."""
    made: dict[tuple[Path, tuple[str, ...]], Path] = {}

    def compile_it(source: Path, *flags: str) -> Path:
        if (source, flags) not in made:
            program = folder / f"{source.stem}-{len(made)}"
            run(
                "cc", *STRICT, *flags, f"-I{prefix}/include", source, f"-L{prefix}/lib",
                f"-Wl,-rpath,{prefix}/lib", "-loutcore", "-lpthread", "-o", program,
            )  # fmt: skip
            made[source, flags] = program
        return made[source, flags]

    return compile_it
