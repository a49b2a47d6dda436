from __future__ import annotations

import sys
from pathlib import Path

_place = str(Path(__file__).parents[1] / "execution" / "loop")
if _place not in sys.path:
    sys.path.append(_place)
