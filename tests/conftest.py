"""What test files share."""

import pytest

from edgemem.runtime.engine import Engine


@pytest.fixture(scope="session")
def engine():
    """The bundled model, loaded once."""
    with Engine.load() as loaded:
        yield loaded


@pytest.fixture(scope="session")
def small():
    """The same with the smallest window."""
    with Engine.load(n_ctx=256) as loaded:
        yield loaded
