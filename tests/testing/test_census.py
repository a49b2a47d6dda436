"""The census itself: each kind of leak fails the test that left it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PREAMBLE = """
import asyncio, subprocess, sys, threading, time
import pytest
pytest_plugins = ["dsh.testing.plugin"]
"""

LEAKS = {
    "task": """
async def test_leak():
    globals()["kept"] = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
""",
    "thread": """
def test_leak():
    threading.Thread(target=time.sleep, args=(4,), name="forgotten", daemon=True).start()
""",
    "child process": """
def test_leak():
    globals()["kept"] = subprocess.Popen(["sleep", "4"])
""",
}


@pytest.mark.parametrize("kind", ["task", "thread", "child process"])
def test_a_test_that_leaves_something_fails_by_its_name(
    pytester: pytest.Pytester, kind: str
) -> None:
    pytester.makepyfile(PREAMBLE + LEAKS[kind])
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"*left behind: {kind}*"])


def test_a_clean_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        PREAMBLE
        + """
async def test_clean(root):
    await asyncio.create_task(asyncio.sleep(0))
    await asyncio.to_thread(time.sleep, 0)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    async def body(ctx):
        ctx.defer(lambda: None, "held")
    await root.inject([], body)
"""
    )
    pytester.runpytest_subprocess("-p", "no:randomly", "-o", "asyncio_mode=auto").assert_outcomes(
        passed=1
    )
