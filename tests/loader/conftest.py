from __future__ import annotations

from collections.abc import Iterator

import pytest
from loader_support import Shelf, shelf


@pytest.fixture
def plugins() -> Iterator[Shelf]:
    with shelf() as made:
        yield made
