from __future__ import annotations

import pytest
from initiator_faces import FACES


@pytest.fixture(params=FACES)
def face_label(request: pytest.FixtureRequest) -> str:
    """Each face of the initiator store in turn."""
    label: str = request.param
    return label
