"""A program may write anything to dsh's end of the link; dsh goes on, and so does the run."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from code_world import Held, World, frames
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.capability.code_runtime import conversation
from dsh.capability.code_runtime.child.values import MOST_VALUES
from dsh.capability.code_runtime.link import BrokenRules, Link
from dsh.capability.code_runtime.protocol import (
    UNFIT,
    BootAck,
    Called,
    Done,
    Logged,
    has_too_many_values,
    parse_frame,
)
from dsh.capability.code_runtime.service import CodeError, CodeResult

CALL = {"type": "call", "id": 1, "global": "tools", "name": "echo", "args": {}}


def line(frame: object) -> bytes:
    return json.dumps(frame).encode()


@pytest.mark.parametrize(
    "frame",
    [
        [], 1, None, "call", {}, {"type": None}, {"type": ["call"]}, {"type": "reply", "id": 1},
        {**CALL, "id": "1"}, {**CALL, "id": None}, {**CALL, "id": True}, {**CALL, "id": -0.0},
        {**CALL, "id": [1]}, {**CALL, "global": 1}, {**CALL, "name": None},
        {key: CALL[key] for key in CALL if key != "args"},
        {"type": "log"}, {"type": "log", "text": 1}, {"type": "log", "text": ["a"]},
        {"type": "done", "error": None}, {"type": "done", "error": "bad"},
        {"type": "done", "error": {"kind": "timeout", "message": "x"}},
        {"type": "done", "error": {"kind": "abort", "message": "x"}},
        {"type": "done", "error": {"kind": "exception"}},
        {"type": "done", "error": {"kind": ["exception"], "message": "x"}},
    ],
)  # fmt: skip
def test_a_frame_of_another_shape_is_dropped(frame: object) -> None:
    assert parse_frame(line(frame)) is None


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff\xfe", b'{"type":"log","text":"a"}x', b"NaN", b"[" * 100_000,
     b'{"type":"call","id":NaN,"global":"tools","name":"echo","args":1}',
     b'{"type":"call","id":1e999,"global":"tools","name":"echo","args":1}'],
)  # fmt: skip
def test_a_line_that_is_no_json_is_dropped(raw: bytes) -> None:
    assert parse_frame(raw) is None


def test_a_frame_is_made_anew_from_what_was_checked() -> None:
    assert parse_frame(line({**CALL, "__proto__": 1, "extra": 2})) == Called(1, "tools", "echo", {})
    assert parse_frame(line({"type": "boot-ack", "x": 1})) == BootAck()
    assert parse_frame(line({"type": "log", "text": "a", "truncated": 1})) == Logged("a", False)


def test_a_done_with_value_and_error_is_an_error() -> None:
    error = {"kind": "exception", "message": "bad"}
    both = {"type": "done", "value": 1, "error": error}
    assert parse_frame(line(both)) == Done(None, CodeError("exception", "bad"))


@pytest.mark.parametrize("number", ["9007199254740993", "-0.0", "1" * 400])
def test_a_number_that_is_no_double_makes_a_value_unfit(number: str) -> None:
    raw = b'{"type":"done","value":{"a":[' + number.encode() + b"]}}"
    found = parse_frame(raw)
    assert isinstance(found, Done)
    assert found.value is UNFIT


def test_a_frame_of_ten_thousand_levels_is_read() -> None:
    raw = b'{"type":"done","value":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    assert isinstance(parse_frame(raw), Done)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "global", "name", "args", "text", "value", "error"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)
KINDS = st.sampled_from(["boot-ack", "call", "log", "done", "run", "reply"])


@given(JSON, KINDS)
def test_no_frame_makes_the_reader_fail(value: Any, kind: str) -> None:
    frame = {**value, "type": kind} if isinstance(value, dict) else value
    found = parse_frame(json.dumps(frame).encode())
    assert found is None or isinstance(found, BootAck | Called | Logged | Done)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(raw: bytes) -> None:
    parse_frame(raw)


async def test_forged_frames_do_not_disturb_a_run(world: World) -> None:
    forged = frames(
        "garbage", "{}", "[" * 5000, '{"type":"call","id":null}', '{"type":"boot-ack"}',
        '{"type":"done","error":{"kind":"timeout","message":"forged"}}',
        '{"type":"call","id":-5,"global":"tools","name":"__class__","args":{}}',
        '{"type":"call","id":-4,"global":"__class__","name":"echo","args":{}}',
        '{"type":"log","text":"forged log"}',
    )  # fmt: skip
    result = await world.run(forged + "return await tools.echo({'a': 1})")
    assert result == CodeResult({"a": 1}, ("forged log",))


async def test_a_forged_outcome_is_no_more_than_an_outcome(world: World) -> None:
    result = await world.run(
        frames('{"type":"done","value":1}', '{"type":"log","text":"late"}') + "while True: pass"
    )
    assert result == CodeResult(1)


async def test_an_id_that_was_used_or_passed_is_not_answered(world: World) -> None:
    call = '{"type":"call","id":%s,"global":"tools","name":"echo","args":%d}'
    calls = frames(*(call % each for each in (("7", 1), ("7", 2), ("6", 3), ("-8", 4), ("7.5", 5))))
    program = """
import json
replies = []
while len(replies) < 2:
    replies += map(json.loads, os.read(3, 10_000).splitlines())
return [[each["id"], each["value"]] for each in replies]
"""
    assert await world.value(calls + program) == [[7, 1], [7.5, 5]]
    assert world.calls == [1, 5]


async def test_an_unknown_function_is_answered_with_a_failure(world: World) -> None:
    program = """
        import json, os
        os.write(3, b'{"type":"call","id":1,"global":"tools","name":"gone","args":{}}\\n')
        reply = json.loads(os.read(3, 10_000))
        os.write(3, b'{"type":"call","id":2,"global":"tools","name":"echo","args":[-0.0]}\\n')
        second = json.loads(os.read(3, 10_000))
        return [reply["ok"], reply["message"], second["message"]]
    """
    assert await world.value(program) == [
        False,
        "there is no function tools['gone']",
        "the arguments are not lossless JSON",
    ]


async def test_a_line_without_end_ends_the_run(make: Any) -> None:
    world = await make(maxOutputBytes=100_000)
    error = await world.error("import os\nwhile True:\n    os.write(3, b'x' * 10_000)")
    assert error == CodeError(
        "worker-exit", "the program was ended: it sent a message that is too long"
    )


async def test_a_program_that_asks_and_never_reads_is_ended(make: Any) -> None:
    world = await make(maxOutputBytes=64 << 20, maxWallMs=15_000)
    big = "x" * 1_000_000

    async def large(args: Any) -> str:
        return big

    program = """
        import os
        for n in range(100_000):
            os.write(3, b'{"type":"call","id":%d,"global":"tools","name":"large","args":1}\\n' % n)
        while True:
            pass
    """
    error = await world.error(program, large=large)
    assert error == CodeError(
        "worker-exit", "the program was ended: it does not read the replies to its calls"
    )


@pytest.mark.parametrize("junk", ["\n", "x\n", "{}\n", '{"type":"log","text":""}\n'])
async def test_no_flood_of_lines_keeps_the_loop_from_others(world: World, junk: str) -> None:
    longest, last, over = 0.0, time.monotonic(), False

    async def beat() -> None:
        nonlocal longest, last
        while not over:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(0)

    heart = asyncio.create_task(beat())
    await world.run(
        f"import os\nwhole = {junk!r}.encode() * {(1 << 18) // len(junk)}\n"
        "while whole:\n    whole = whole[os.write(3, whole):]\nreturn 1"
    )
    over = True
    await heart
    assert longest < 1.0


async def test_the_clock_ends_a_program_that_floods_the_link(make: Any) -> None:
    world = await make(maxWallMs=400)
    since = time.monotonic()
    error = await world.error("import os\nwhile True:\n    os.write(3, b'x\\n' * 100_000)")
    assert error.kind == "timeout"
    assert time.monotonic() - since < 5


async def test_a_line_of_output_without_end_is_an_output_limit(make: Any) -> None:
    world = await make(maxOutputBytes=100_000, maxWallMs=15_000)
    result = await world.run("import os\nwhile True:\n    os.write(1, b'x' * 65_536)")
    assert result.error is not None
    assert result.error.kind == "output-limit"
    assert [len(each) for each in result.logs] == [100_000 - 4]


async def test_more_values_than_dsh_could_hold_end_the_run(world: World) -> None:
    count = 2 * MOST_VALUES
    sent = f"""b'{{"type":"done","value":[' + b'[],' * {count} + b'1]}}\\n'"""
    program = f"import os, time\nwhole = {sent}\nwhile whole: whole = whole[os.write(3, whole):]"
    assert await world.error(program + "\ntime.sleep(100)") == CodeError(
        "worker-exit", "the program was ended: it sent a message of too many values"
    )


@pytest.mark.parametrize(
    ("line", "too_many"),
    [
        (b"[" + b"1," * (2 * MOST_VALUES + 20) + b"1]", True),
        (b"[" * (2 * MOST_VALUES + 20), True),
        (b'{"text":"' + b",[" * (2 * MOST_VALUES + 20) + b'"}', False),
        (b'{"text":"' + b'\\"[' * (2 * MOST_VALUES + 20) + b'"}', False),
        (b'{"text":"' + b'\\"[' * (2 * MOST_VALUES + 20), False),
        (b'"\\' + b"," * (2 * MOST_VALUES + 20), False),
        (b'"\\', False),
        (b"[" + b"[]," * (MOST_VALUES - 1) + b"[]]", False),
    ],
)
def test_values_are_counted_outside_of_texts(line: bytes, too_many: bool) -> None:
    since = time.monotonic()
    assert has_too_many_values(line) is too_many
    assert time.monotonic() - since < 5


async def test_a_program_that_returns_too_many_values_is_an_output_limit(world: World) -> None:
    assert await world.error(f"return [0] * {MOST_VALUES}") == CodeError(
        "output-limit", "the program returned too much: it holds more than 500000 values"
    )


async def test_as_many_values_as_there_may_be_are_returned(world: World) -> None:
    assert len(await world.value(f"return [[]] * {MOST_VALUES - 1}")) == MOST_VALUES - 1


async def test_arguments_of_too_many_values_fail_in_the_program(world: World) -> None:
    program = f"""
        try:
            await tools.echo([0] * {MOST_VALUES})
        except ToolCallError as error:
            return str(error)
    """
    assert "more than 500000 values" in await world.value(program)
    assert world.calls == []


async def test_calls_that_would_take_too_much_memory_together_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MOST_PENDING_BYTES", 1_000_000)
    held = Held()

    async def release(args: Any) -> None:
        held.go.set()

    program = """
        import asyncio
        calls = [asyncio.ensure_future(tools.held("x" * 400_000)) for _ in range(4)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await tools.release()
        found = await asyncio.gather(*calls, return_exceptions=True)
        found.append(await tools.echo("x" * 2_000_000))
        return [len(each) if isinstance(each, str) else str(each) for each in found]
    """
    refused = "the arguments of the calls that are under way are too much together"
    found = await world.value(program, held=held, release=release)
    assert found == [400_000, 400_000, refused, refused, 2_000_000]


async def test_what_the_arguments_of_a_call_took_is_free_when_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MOST_PENDING_BYTES", 1_000_000)
    program = """
        import asyncio
        pending = asyncio.ensure_future(tools.held())
        return [len(await tools.echo("x" * 400_000)) for _ in range(4)]
    """
    assert await world.value(program, held=Held()) == [400_000] * 4


async def test_a_function_that_cancels_itself_fails_its_call(world: World) -> None:
    async def give_up(args: Any) -> None:
        raise asyncio.CancelledError

    program = """
        try:
            await tools.give_up()
        except ToolCallError as error:
            return str(error)
    """
    assert "cancelled its own work" in await world.value(program, give_up=give_up)


async def test_a_large_outcome_is_heard_however_long_it_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = asyncio.Event()

    async def parsed(line: bytes) -> Any:
        if b'"done"' in line:
            # Longer than anybody waits for what a process does last.
            asyncio.get_running_loop().call_later(1.3, slow.set)
            await slow.wait()
        return parse_frame(line)

    monkeypatch.setattr(conversation, "_parsed", parsed)
    assert await world.value("return 'heard'") == "heard"


async def test_the_link_in_the_hands_of_others_holds_nobody_up(
    world: World, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        server.setblocking(False)
        taken: list[int] = []

        async def take(args: Any) -> None:
            client, _ = await asyncio.get_running_loop().sock_accept(server)
            client.setblocking(True)
            with client:
                taken.extend(socket.recv_fds(client, 1, 1)[1])

        program = f"""
            import array, asyncio, os, socket
            friend = socket.socket(socket.AF_UNIX)
            friend.connect({str(tmp_path / "s")!r})
            friend.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [3]))])
            await tools.take()
            os._exit(7)
        """
        since = time.monotonic()
        error = await world.error(program, take=take)
        for fd in taken:
            os.close(fd)
    assert len(taken) == 1
    assert error.message.endswith("exit code 7")
    assert time.monotonic() - since < 3


async def test_the_memory_and_environment_of_dsh_stay_closed(world: World) -> None:
    program = f"""
        import os
        seen = []
        for pid in ({os.getpid()}, os.getppid()):
            for name in ("environ", "mem", "maps", "auxv", "root/etc", "cwd/.", "fd/0"):
                try:
                    os.close(os.open(f"/proc/{{pid}}/{{name}}", os.O_RDONLY))
                    seen.append(f"{{pid}} {{name}}")
                except OSError:
                    continue
        return seen
    """
    assert await world.value(program) == []


async def test_dsh_and_the_supervisor_hear_no_signal_of_a_program(world: World) -> None:
    program = f"""
        import os, signal
        for pid in ({os.getpid()}, os.getppid()):
            try:
                os.kill(pid, signal.SIGWINCH)
                return pid
            except PermissionError:
                continue
    """
    assert await world.value(program) is None


@pytest.mark.parametrize(
    "error",
    [
        "class E(Exception):\n    __notes__ = property(lambda _: exit(3))",
        (
            "class M(type):\n    __name__ = property(lambda _: exit(3))\n"
            "class E(Exception, metaclass=M):\n    __notes__ = property(lambda _: exit(3))\n"
            "    def __str__(self): raise KeyboardInterrupt"
        ),
    ],
)
async def test_an_exception_that_fights_being_shown_is_an_exception(
    world: World, error: str
) -> None:
    result = await world.run("import sys\nexit = sys.exit\n" + error + "\nraise E('x')")
    assert result.error is not None
    assert result.error.kind == "exception"
    assert result.logs == ()


async def test_a_long_chain_of_causes_is_told_in_time(make: Any) -> None:
    world = await make(computeMs=4000)
    program = """
        error = None
        for n in range(20_000):
            error, last = ValueError(n), error
            error.__cause__ = last
        raise error
    """
    assert (await world.error(program)).message.endswith("ValueError: 19999")


async def test_only_what_nobody_has_read_counts_against_a_peer() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    link = Link(ours, max_line=100, max_unsent=10)
    with ours, theirs:
        pump = asyncio.create_task(link.pump())
        for _ in range(5):
            link.send(b"x" * 11)
            assert await asyncio.get_running_loop().sock_recv(theirs, 11) == b"x" * 11
            await asyncio.sleep(0)
        pump.cancel()
        await asyncio.wait((pump,))
        link.send(b"x" * 11)
        with pytest.raises(BrokenRules, match="does not read"):
            link.send(b"x")


async def test_too_many_calls_at_once_fail(world: World) -> None:
    program = """
        import asyncio
        calls = [tools.echo(n=n) for n in range(1100)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in found if isinstance(each, ToolCallError)]
        return [len(found), str(refused[0]) if refused else "1000 calls are under way already"]
    """
    assert await world.value(program) == [1100, "1000 calls are under way already"]


async def test_closing_the_link_ends_the_run(world: World) -> None:
    error = await world.error("import os, time\nos.close(3)\ntime.sleep(100)")
    assert error.kind == "worker-exit"


@settings(
    max_examples=8, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.lists(st.binary(max_size=60), max_size=8))
async def test_no_bytes_on_the_link_disturb_a_run(world: World, raw: list[bytes]) -> None:
    lines = [each.replace(b"\n", b"") for each in raw]
    program = f"import os\nfor line in {lines!r}:\n    os.write(3, line + b'\\n')\nreturn 'done'"
    assert (await world.run(program)).value == "done"
