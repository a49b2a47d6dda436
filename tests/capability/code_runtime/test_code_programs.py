"""Programs: the body of an async function, alone in an interpreter, with its output kept."""

from __future__ import annotations

import pytest
from code_world import World

from dsh.capability.code_runtime.service import CodeError, CodeResult


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("return 1 + 1", 2),
        ("", None),
        ("x = 1", None),
        ("return None", None),
        ("return await tools.echo({'a': [1, 2.5, None, 'ü']})", {"a": [1, 2.5, None, "ü"]}),
        ("return await tools['echo']({})", {}),
        ("return await tools.echo()", {}),
        ("return await tools.echo(a=1)", {"a": 1}),
        ("return await tools.echo({'a': 1}, b=2)", {"a": 1, "b": 2}),
        ("return sorted(tools)", ["echo", "fail"]),
        ("return 'echo' in tools and 'nope' not in tools", True),
        ("def twice(n):\n    return n * 2\nreturn [twice(n) for n in range(3)]", [0, 2, 4]),
        ("text = '''a\n  b\n'''\nreturn text", "a\n  b\n"),
        ("from __future__ import annotations\nimport math\nreturn math.floor(2.5)", 2),
        ("return __name__", "__dsh_main__"),
        ("return '\\ud800'", "\ud800"),
    ],
)  # fmt: skip
async def test_a_program_is_the_body_of_an_async_function(
    world: World, program: str, value: object
) -> None:
    assert await world.run(program) == CodeResult(value)


async def test_calls_overlap_with_asyncio(world: World) -> None:
    program = """
        import asyncio
        async def later(n):
            await asyncio.sleep(0)
            return await tools.echo({"n": n})
        first = asyncio.create_task(later(1))
        rest = await asyncio.gather(tools.echo({"n": 2}), later(3))
        return [await first, *rest]
    """
    assert await world.value(program) == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_a_failed_call_raises_the_error_class(world: World) -> None:
    program = """
        try:
            await tools.fail({})
        except ToolCallError as error:
            return [error.toolName, error.message, str(error)]
    """
    assert await world.value(program) == ["fail", "it does not work", "it does not work"]


async def test_what_is_printed_is_kept_in_lines(world: World) -> None:
    program = """
        import sys
        print("one")
        print("two", "three", sep="-")
        sys.stderr.write("four\\nfive\\n")
        print("open end", end="")
        return 6
    """
    result = await world.run(program)
    assert result == CodeResult(6, ("one", "two-three", "four\nfive", "open end"))


async def test_what_is_written_past_python_is_kept_too(world: World) -> None:
    result = await world.run("import os\nos.system('echo out; echo err >&2')\nos.write(1, b'raw')")
    assert sorted(result.logs) == ["err", "out", "raw"]


async def test_logs_before_a_failure_are_kept(world: World) -> None:
    result = await world.run("print('before')\nraise ValueError('bad')")
    assert result.logs == ("before",)
    assert result.error is not None
    assert result.error.kind == "exception"


async def test_logs_before_a_death_are_kept(world: World) -> None:
    result = await world.run("print('before')\nimport os\nos._exit(3)")
    assert result.logs == ("before",)
    assert result.error == CodeError(
        "worker-exit", "the program's process ended before it was done: exit code 3"
    )


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("x = 1\nraise ValueError('bad')", 'line 2, in __dsh_main__\n    raise Value'),
        ("def f(:", "SyntaxError"),
        ("return (", "SyntaxError"),
        ("yield 1", "cannot yield"),
        ("await tools.nope()", "tools has no 'nope'; it has echo, fail"),
        ("await tools['nope']()", "tools has no 'nope'"),
        ("await tools.fail()", "ToolCallError: it does not work"),
        ("import sys\nsys.exit(4)", "SystemExit: 4"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise OSError\nraise E", "E: <exception"),
        ("raise ExceptionGroup('many', [ValueError('a')])", "ValueError: a"),
        ("x = " + "(" * 500 + ")" * 500, "too many nested parentheses"),
        ("await Ellipsis", "TypeError"),
    ],
)  # fmt: skip
async def test_a_program_that_fails_says_where(world: World, program: str, says: str) -> None:
    error = await world.error(program)
    assert error.kind == "exception"
    assert says in error.message
    assert "code_runtime" not in error.message


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("(1, 2)", "value is of type tuple; make it a list"),
        ("{'a': {1}}", "value['a'] is of type set; make it a list"),
        ("{1: 2}", "value has the key 1, which is not text"),
        ("[float('nan')]", "value[0]: nan is not a JSON number"),
        ("float('inf')", "inf is not a JSON number"),
        ("-0.0", "-0.0 is not kept by every reader"),
        ("2**53 + 1", "loses digits"),
        ("10**400", "loses digits"),
        ("object()", "value is of type object, which JSON does not have"),
        ("b'bytes'", "value is of type bytes"),
        ("__import__('collections').Counter('aa')", "value is of type Counter; make it a dict"),
    ],
)
async def test_a_value_that_is_not_lossless_json_is_invalid(
    world: World, returned: str, says: str
) -> None:
    error = await world.error(f"return {returned}")
    assert error.kind == "invalid-output"
    assert says in error.message


async def test_a_value_that_contains_itself_is_invalid(world: World) -> None:
    error = await world.error("x = []\nx.append(x)\nreturn {'a': x}")
    assert error.kind == "invalid-output"
    assert "value['a'][0] contains itself" in error.message


async def test_an_integer_that_is_a_double_exactly_passes(world: World) -> None:
    assert await world.value("return [2**60, -(2**53)]") == [2**60, -(2**53)]


async def test_arguments_that_are_not_lossless_json_fail_in_the_program(world: World) -> None:
    program = """
        try:
            await tools.echo({"a": (1,)})
        except ToolCallError as error:
            return str(error)
    """
    assert "not lossless JSON: value['a'] is of type tuple" in await world.value(program)
    assert world.calls == []


async def test_ten_thousand_levels_pass_in_both_directions(world: World) -> None:
    program = """
        deep = []
        for _ in range(10_000):
            deep = [deep]
        back = await tools.echo({"a": deep})
        return back
    """
    found = await world.value(program)
    assert isinstance(found, dict)
    levels, inner = 0, found["a"]
    while inner:
        levels, inner = levels + 1, inner[0]
    assert levels == 10_000


async def test_runs_are_isolated(world: World) -> None:
    await world.value("import builtins, sys\nbuiltins.left = 1\nsys.left = 1\nopen('left', 'w')")
    program = """
        import builtins, os, sys
        return [hasattr(builtins, "left"), hasattr(sys, "left"), os.listdir()]
    """
    assert await world.value(program) == [False, False, []]


async def test_the_environment_is_empty(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_WORD", "seen")
    program = """
        import os, subprocess
        inherited = open("/proc/self/environ", "rb").read().decode()
        child = subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout
        return [dict(os.environ), inherited, child]
    """
    assert await world.value(program) == [{}, "", ""]


async def test_a_program_has_the_standard_library_and_nothing_of_ours(world: World) -> None:
    program = """
        found = []
        for name in ("json", "sqlite3", "dsh", "pydantic", "code_runtime", "child"):
            try:
                __import__(name)
                found.append(name)
            except ImportError:
                pass
        return found
    """
    assert await world.value(program) == ["json", "sqlite3"]


@pytest.mark.parametrize("yielded", ["None", "99", "object()"])
async def test_what_nobody_answers_cannot_be_awaited(world: World, yielded: str) -> None:
    program = f"""
        import types
        @types.coroutine
        def wait():
            yield {yielded}
        try:
            await wait()
        except RuntimeError as error:
            return [str(error), await tools.echo(n=1)]
    """
    assert await world.value(program) == [
        "only tool calls can be awaited without importing asyncio",
        {"n": 1},
    ]


async def test_calls_without_asyncio_are_made_one_after_the_other(world: World) -> None:
    program = """
        import sys
        found = [await tools.echo({"n": n}) for n in range(3)]
        return [found, "asyncio" in sys.modules]
    """.replace('"asyncio" in', '"async" "io" in')
    assert await world.value(program) == [[{"n": 0}, {"n": 1}, {"n": 2}], False]
