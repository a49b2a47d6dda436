from __future__ import annotations

from typing import Any

import pytest

from dsh.execution.agent.consumed import fold_consumed_work

START = ("turn/start", {"turn": 1})
STEP = ("step/start", {"turn": 1, "step": 1})
CLAIM = ("agent/inbox/spliced", {"removedCount": 1, "inserted": []})
DROP = ("agent/inbox/spliced", {"removedCount": 1, "inserted": [], "outcome": "canceled"})
SWAP = ("agent/inbox/spliced", {"removedCount": 1, "inserted": [1], "outcome": "canceled"})


def end(kind: str) -> tuple[str, Any]:
    return ("turn/end", {"turn": 1, "reason": {"kind": kind}})


@pytest.mark.parametrize(
    ("log", "accounts", "dropped"),
    [
        ([], None, False),
        ([START, CLAIM, STEP, end("completed")], 3, False),
        ([START, CLAIM, end("completed")], None, False),
        ([START, CLAIM, end("blocked")], 2, False),
        ([START, CLAIM, end("of a later version")], 2, False),
        ([START, end("aborted")], None, False),
        ([CLAIM, START, end("aborted")], None, False),
        ([START, CLAIM, STEP, end("completed"), DROP], 3, True),
        ([DROP, START, CLAIM, STEP, end("completed")], 4, False),
        ([START, CLAIM, STEP, end("completed"), SWAP], 3, False),
        ([DROP], None, True),
    ],
)
def test_the_last_accounting_turn_speaks_for_the_work(
    log: list[Any], accounts: int | None, dropped: bool
) -> None:
    events: Any = [
        {"type": name, "seq": seq, "time": 0, "data": data} for seq, (name, data) in enumerate(log)
    ]
    found = fold_consumed_work(events)
    assert (found.end and found.end["seq"]) == accounts
    assert found.dropped_unrun is dropped
