"""fsspec's own tests of a file system, over an embedded and a served pool."""

from collections.abc import Callable, Iterator

import pytest
from fsspec.tests import abstract
from served_pools import some_pool

import outcore as oc
from outcore.pool.fsspec_filesystem import OutcoreFileSystem


@pytest.fixture(scope="module", params=["embedded", "served"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as opened:
        yield opened


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, pool: oc.Pool) -> OutcoreFileSystem:
        return OutcoreFileSystem(pool=pool)

    @pytest.fixture
    def fs_path(self, fs: OutcoreFileSystem) -> Iterator[str]:
        fs.mkdir("/tests")
        yield "/tests"
        fs.rm("/tests", recursive=True)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *names: "/".join(names)


class TestCopy(Fixtures, abstract.AbstractCopyTests):
    pass


class TestGet(Fixtures, abstract.AbstractGetTests):
    pass


class TestPut(Fixtures, abstract.AbstractPutTests):
    pass


class TestOpen(Fixtures, abstract.AbstractOpenTests):
    pass


class TestPipe(Fixtures, abstract.AbstractPipeTests):
    pass
