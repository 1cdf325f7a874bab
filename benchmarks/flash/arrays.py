"""Processes that write files of FLASH as time steps of an `outcore.ArrayGroup`, and measure it.

It prints the same lines as the programs in C: ``python -m benchmarks.flash.arrays URL KEY FORM
ABOVE FACTOR ROUNDS``.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks.flash import model

FORMS = ("each", "joined")
"""Whether each variable is an array, or one array has all of them along its first dimension."""

JOINED = "variables"


class Writer:
    """Writes the groups of one process, together with all others."""

    def __init__(self, pool: oc.Pool, comm: Any, form: str, factor: int) -> None:
        self.pool, self.comm, self.is_joined = pool, comm, form == "joined"
        self.blocks = model.blocks_of(comm.size, factor)
        self.own = self.blocks[comm.rank]
        self.memory = model.cells(self.own)
        self._packed: dict[tuple[str, str], npt.NDArray[Any]] = {}

    def parts(self, content: str, *, is_packed: bool) -> dict[str, npt.NDArray[Any]]:
        """Return this process's part of each array; a checkpoint's are views unless packed."""
        is_view = content == "checkpoint" and not is_packed
        found: dict[str, npt.NDArray[Any]] = {}
        variables = []
        for name, numbers, layout in model.arrays(content, self.memory, self.own):
            if name in model.TREE:
                found[name] = np.ascontiguousarray(numbers, layout.dtype)
            elif self.is_joined:
                variables.append(numbers)
            elif is_view:
                found[name] = numbers
            else:
                kept = found[name] = self._kept(content, name, numbers.shape, layout.dtype)
                np.copyto(kept, numbers, casting="same_kind")
        if self.is_joined and is_view:
            found[JOINED] = model.interiors(self.memory)
        elif self.is_joined:
            shape = (len(variables), *variables[0].shape)
            kept = found[JOINED] = self._kept(content, JOINED, shape, found["sizes"].dtype)
            np.stack(variables, out=kept, casting="same_kind")
        return found

    def _kept(
        self, content: str, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Return memory for packed numbers, which stays between files as in the C programs."""
        if (content, name) not in self._packed:
            self._packed[content, name] = np.empty(shape, dtype)
        return self._packed[content, name]

    def spec(self, part: npt.NDArray[Any]) -> tuple[oc.ArraySpec, oc.Schema]:
        """Return the whole array of a part, and the parts of all processes."""
        axis = int(part.ndim == 5)
        shape = list(part.shape)
        shape[axis] = self.blocks[-1].stop
        whole = [slice(0, extent) for extent in shape]
        boxes = [[(*whole[:axis], slice(b.start, b.stop), *whole[axis + 1 :])] for b in self.blocks]
        return oc.ArraySpec(shape, part.dtype), oc.Schema.boxes(boxes)

    def write(self, path: str, content: str, *, is_packed: bool) -> float:
        """Write a group, durably; return the seconds in which this process packed."""
        begin = time.monotonic()
        parts = self.parts(content, is_packed=is_packed)
        packing = time.monotonic() - begin
        whole = {name: self.spec(part) for name, part in parts.items()}
        specs = {name: spec for name, (spec, _) in whole.items()}
        schemas = {name: schema for name, (_, schema) in whole.items()}
        with oc.ArrayGroup(self.pool / path, specs, comm=self.comm) as group:
            group.timestep({name: [part] for name, part in parts.items()}, schema=schemas)
        return packing

    def measure(self, above: str, content: str, *, is_packed: bool) -> None:
        """Write a group, and print a line."""
        path = f"{above}-{content}{'-packed' if is_packed else ''}"
        if self.comm.rank == 0 and self.pool.exists(path):
            self.pool.rm(path, recursive=True)
        self.comm.barrier()
        begin = time.monotonic()
        packing = self.write(path, content, is_packed=is_packed)
        ends = self.comm.gather((time.monotonic() - begin, packing))
        if ends:
            seconds, packing = map(max, zip(*ends, strict=True))
            line = {"content": content, "is_packed": is_packed, "seconds": seconds}
            print(json.dumps(line | {"packing": packing}), flush=True)


def main() -> None:
    from mpi4py import MPI

    url, key, form, above, factor, rounds = sys.argv[1:]
    with oc.connect(url, key=key) as pool:
        writer = Writer(pool, MPI.COMM_WORLD, form, int(factor))
        for _ in range(int(rounds)):
            for is_packed in (False, True):
                writer.measure(above, "checkpoint", is_packed=is_packed)
        for content in ("centred", "corners"):
            writer.measure(above, content, is_packed=True)


if __name__ == "__main__":
    main()
