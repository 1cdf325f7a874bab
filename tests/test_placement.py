"""Which chunk lies on which server: counted by hand, and as a picture."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner
from served_pools import in_memory

import outcore as oc
from outcore.cli import main
from outcore.placement import SEVERAL, draw


def picture(servers: list[int] | np.ndarray) -> list[str]:
    return list(draw(np.asarray(servers)))


@pytest.fixture
def pool() -> Iterator[oc.Pool]:
    with in_memory() as directory, oc.Pool.embedded([directory / c for c in "abc"]) as opened:
        yield opened
