from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


PIECES = [START, STEP, CLAIM, DROP, SWAP, *(end(kind) for kind in ("completed", "error", "new"))]


def turns(log: list[Any]) -> list[list[Any]]:
    """The log from each ``turn/start`` to its ``turn/end``, as indices."""
    found, begun = [], None
    for index, (name, _) in enumerate(log):
        if name == "turn/start":
            begun = index
        elif name == "turn/end":
            found.append(list(range(index if begun is None else begun, index + 1)))
            begun = None
    return found


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_the_fold_agrees_with_a_reading_turn_by_turn(log: list[Any]) -> None:
    # Logs of the loop alternate starts and ends, and steps are inside of turns.
    well, is_open = [], False
    for name, data in log:
        if name == "turn/start" and not is_open:
            is_open = True
        elif name in {"turn/end", "step/start"} and is_open:
            is_open = name != "turn/end"
        elif name != "agent/inbox/spliced":
            continue
        well.append((name, data))
    spoke = None
    for turn in turns(well):
        names = [well[index][0] for index in turn]
        claims = [well[index][1] == CLAIM[1] for index in turn]
        completed = well[turn[-1]][1]["reason"]["kind"] == "completed"
        if "step/start" in names or (any(claims) and not completed):
            spoke = turn[-1]
    after = well if spoke is None else well[spoke + 1 :]
    events: Any = [
        {"type": name, "seq": seq, "time": 0, "data": data} for seq, (name, data) in enumerate(well)
    ]
    found = fold_consumed_work(events)
    assert (found.end and found.end["seq"]) == spoke
    assert found.dropped_unrun == any(data == DROP[1] for _, data in after)
