"""A checkpoint in the background, beside a loop that computes on one core.

It measures the slowdown of the loop while its arrays are written, and the time for which the loop
is held up while they are copied.
"""

import time

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import alternate

SIDE = {"full": 8192, "quick": 4096, "tiny": 256}
LOOP_S = {"full": 10.0, "quick": 3.0, "tiny": 0.2}


def measure(setting: Setting) -> Outcome:
    local = np.random.default_rng(1).random((SIDE[setting.size],) * 2)
    # The loop's own data fit into the processor's caches.
    a = np.random.default_rng(2).random(1 << 14)
    out = np.empty_like(a)
    held_up: list[float] = []

    def loop(group: oc.ArrayGroup | None) -> float:
        """Return steps per second; with a group, its checkpoints are written all the time."""
        steps, away, handle = 0, 0.0, None
        begin = time.monotonic()
        while time.monotonic() - begin - away < LOOP_S[setting.size]:
            if group is not None and (handle is None or handle.done()):
                called = time.monotonic()
                handle = group.checkpoint(
                    {"u": local}, background=True, memory=local.nbytes + (64 << 20)
                )
                held_up.append(time.monotonic() - called)
                away += held_up[-1]
            for _ in range(100):
                np.sin(a, out=out)
            steps += 1
        rate = steps / (time.monotonic() - begin - away)
        if handle is not None:
            handle.wait()
        return rate

    spec = {"u": oc.ArraySpec(local.shape, "f8")}
    with oc.ArrayGroup(setting.scratch / "group", spec) as group:
        runs = {"with": lambda: loop(group), "without": lambda: loop(None)}
        rounds = 1 if setting.size == "tiny" else 5
        found = alternate("steps a second", runs, rounds=rounds, show=lambda value: f"{value:.1f}")
    what = f"checkpoints of {local.nbytes >> 20} MiB in the background"
    return Outcome(
        [
            Figure(
                f"{what}: a loop on one core is slower by",
                [100 * (1 / ratio - 1) for ratio in found.ratios("with", "without")],
                Target("≤", 5),
                unit="%",
                details=dict(found.measures),
            ),
            Figure(f"{what}: held up while they are copied, each", held_up, unit="s"),
        ]
    )


if __name__ == "__main__":
    main("checkpoint", measure)
