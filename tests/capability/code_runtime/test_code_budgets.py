"""What a program may use up: processor, clock, memory, output."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from code_world import Held, interpreters
from hypothesis import given
from hypothesis import strategies as st

from dsh.base.json import dumps
from dsh.capability.code_runtime.child.values import MOST_VALUES, fitting, json_size
from dsh.capability.code_runtime.ledger import TOO_LARGE, Ledger
from dsh.capability.code_runtime.service import CodeResult
from dsh.kernel import ValidationError

Make = Any


async def test_a_hot_loop_is_killed(make: Make) -> None:
    world = await make(computeMs=200)
    result = await world.run("print('before')\nwhile True: pass")
    assert result.logs == ("before",)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert "0.2 s of processor time" in result.error.message


@pytest.mark.parametrize(
    "program",
    [
        "sum(range(10**12))",
        "import re\nre.match('(a+)+b', 'a' * 100)",
        "import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True: pass",
    ],
)
async def test_a_hot_loop_is_killed_wherever_it_hides(make: Make, program: str) -> None:
    world = await make(computeMs=200)
    assert (await world.error(program)).kind == "timeout"


async def test_waiting_for_a_function_costs_no_processor_time(make: Make) -> None:
    world = await make(computeMs=150)

    async def slow(args: Any) -> str:
        await asyncio.sleep(0.4)
        return "slow"

    assert await world.value("return await tools.slow()", slow=slow) == "slow"


async def test_a_busy_loop_behind_a_pending_call_still_expires(make: Make) -> None:
    world = await make(computeMs=200)
    held = Held()
    program = """
        import asyncio
        pending = asyncio.create_task(tools.held())
        await asyncio.sleep(0)
        while True:
            pass
    """
    assert (await world.error(program, held=held)).kind == "timeout"
    assert held.ended.is_set() or not held.reached.is_set()


async def test_the_clock_runs_while_a_function_does(make: Make) -> None:
    world = await make(maxWallMs=400)
    held = Held()
    error = await world.error("return await tools.held()", held=held)
    assert error.kind == "timeout"
    assert "0.4 s" in error.message
    assert held.ended.is_set()
    assert interpreters() == []


async def test_the_clock_ends_a_program_that_sleeps(make: Make) -> None:
    world = await make(maxWallMs=300)
    assert (await world.error("import time\ntime.sleep(1000)")).kind == "timeout"


@pytest.mark.parametrize(
    "program", ["x = ' ' * (10**9)", "x = []\nwhile True: x.append(' ' * 10**6)"]
)
async def test_a_program_out_of_memory_is_a_worker_exit(make: Make, program: str) -> None:
    world = await make(maxOldGenerationSizeMb=128)
    error = await world.error(program)
    assert error.kind == "worker-exit"
    assert "memory" in error.message


@pytest.mark.parametrize("prelude", ["", "import asyncio\n"])
async def test_a_reply_that_is_too_much_for_the_memory_is_a_worker_exit(
    make: Make, prelude: str
) -> None:
    world = await make(maxOldGenerationSizeMb=64)

    async def large(args: Any) -> str:
        return "x" * 50_000_000

    error = await world.error(prelude + "return len(await tools.large())", large=large)
    assert error.kind == "worker-exit"
    assert "memory" in error.message


def size(result: CodeResult) -> int:
    said = result.value if result.error is None else result.error.message
    return len(dumps(list(result.logs))) + len(dumps(said))


@pytest.mark.parametrize(
    "program",
    [
        "return 'x' * 50",
        "print('ab')\nprint('cd')\nreturn 'x' * 50",
        "return 'ü\\n\"\\x01' * 50",
        "return [1] * 50",
        "print('ab')\nraise ValueError('x' * 50)",
    ],
)
async def test_output_that_fits_to_the_byte_is_returned_as_it_is(make: Make, program: str) -> None:
    whole = await (await make()).run(program)
    exact = size(whole)

    assert await (await make(maxOutputBytes=exact)).run(program) == whole
    over = await (await make(maxOutputBytes=exact - 1)).run(program)

    assert over.error is not None
    assert over.error.kind == "output-limit"
    assert over.logs == whole.logs


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        ("for _ in range(100): print('abcdefgh')", ("abcdefgh", "abcdefgh", "abcd")),
        ("print('ü' * 1000)", ("ü" * 14,)),
        ("while True: print('abcdefgh')", ("abcdefgh", "abcdefgh", "abcd")),
        ("import os\nos.system('yes abcdefgh')", ("abcdefgh", "abcdefgh", "abcd")),
    ],
)
async def test_printing_too_much_ends_the_run_with_what_fits(
    make: Make, program: str, kept: tuple[str, ...]
) -> None:
    world = await make(maxOutputBytes=32)
    result = await world.run(program)
    assert result.error is not None
    assert result.error.kind == "output-limit"
    assert "".join(result.logs).replace("\n", "").startswith(kept[0])
    assert len(dumps(list(result.logs))) <= 32


async def test_the_largest_budgets_can_be_given(make: Make) -> None:
    most = 2**31 - 1
    world = await make(computeMs=most, maxWallMs=most, maxOldGenerationSizeMb=1 << 33)
    assert await world.value("return 1") == 1


def test_a_log_that_was_cut_ends_the_ledger() -> None:
    ledger = Ledger(1000)
    assert not ledger.add("the start", truncated=True)
    assert not ledger.add("more")
    assert ledger.close(1) == CodeResult(logs=("the start",), error=TOO_LARGE)


def test_more_logs_than_dsh_could_hold_are_an_output_limit() -> None:
    ledger = Ledger(1 << 30)
    assert all(ledger.add("") for _ in range(MOST_VALUES))
    assert not ledger.add("")
    assert ledger.close(1).error == TOO_LARGE


async def test_a_giant_traceback_is_an_output_limit(make: Make) -> None:
    world = await make(maxOutputBytes=5000)
    error = await world.error("raise ValueError('x' * 1_000_000)")
    assert error.kind == "output-limit"


async def test_a_giant_value_is_an_output_limit(make: Make) -> None:
    world = await make(maxOutputBytes=5000)
    assert (await world.error("return ['x' * 100] * 10_000")).kind == "output-limit"


@pytest.mark.parametrize(
    "config",
    [
        {"computeMs": 0}, {"computeMs": -1}, {"computeMs": float("inf")}, {"computeMs": 1e300},
        {"maxWallMs": 0}, {"maxWallMs": 2**31}, {"maxOutputBytes": 3},
        {"maxOldGenerationSizeMb": 0}, {"maxOldGenerationSizeMb": 1e300}, {"cpu": 1},
    ],
)  # fmt: skip
async def test_a_budget_that_makes_no_sense_is_refused(make: Make, config: Any) -> None:
    with pytest.raises(ValidationError):
        await make(**config)


@pytest.mark.parametrize(
    ("max_bytes", "logs", "kept", "room"),
    [
        (4, [], (), 2),
        (4, ["a"], (), 2),
        (5, ["a"], ("a",), 0),
        (9, ["a", "bc"], ("a", "b"), 0),
        (10, ["a", "bc"], ("a", "bc"), 0),
        (8, ["\x01"], (), 6),
        (10, ["\x01"], ("\x01",), 0),
        (12, ["\n" * 9], ("\n" * 4,), 0),
    ],
)
def test_the_ledger_counts_the_json_of_the_logs(
    max_bytes: int, logs: list[str], kept: tuple[str, ...], room: int
) -> None:
    ledger = Ledger(max_bytes)
    fitted = [ledger.add(each) for each in logs]
    assert tuple(ledger.logs) == kept
    assert all(fitted) == (kept == tuple(logs))
    if all(fitted):
        assert ledger.close(10 ** (room - 1)).error is None if room else True
        assert ledger.close(10**room).error == TOO_LARGE


@given(st.text(), st.integers(0, 40))
def test_what_fits_is_the_longest_start(text: str, room: int) -> None:
    kept = fitting(text, room)
    assert text.startswith(kept)
    assert json_size(kept) <= room
    if kept != text:
        assert json_size(text[: len(kept) + 1]) > room


@given(st.text())
def test_a_text_is_measured_as_dsh_writes_it(text: str) -> None:
    assert json_size(text) == len(dumps(text)) - 2
