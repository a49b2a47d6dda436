"""One run: take the limits, compile the program, run it, tell what came of it, end."""

from __future__ import annotations

import builtins
import math
import os
import resource
import signal
import sys
from _ast import PyCF_ONLY_AST

from .channel import Budget, Channel, Output
from .drivers import driver_for
from .namespaces import Calls
from .values import NotJson, TooManyValues, encode, json_size, to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

_FILE = "<program>"
_MAIN = "__dsh_main__"
_FD = 3


def main(fd: int) -> None:
    """Serve one run over a descriptor, and end the process."""
    os.environ.clear()
    if fd != _FD:
        os.dup2(fd, _FD, inheritable=False)
        os.close(fd)
    channel = Channel(_FD)
    boot = channel.receive()
    budget = Budget(boot["maxLogBytes"])
    outputs = Output(channel, budget), Output(channel, budget)
    sys.stdout, sys.stderr = outputs
    sys.argv[:] = [_FILE]
    _take_limits(boot)
    channel.send({"type": "boot-ack"})
    source = channel.receive()["program"]
    done = _outcome(source, boot, channel)
    for output in outputs:
        output.finish()
    channel.send_line(done)
    os._exit(0)


def _take_limits(boot: dict[str, Any]) -> None:
    """Accept the budgets; the system enforces them, whatever the program does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_AS, boot["addressSpaceBytes"], boot["addressSpaceBytes"])
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + boot["cpuSeconds"])
    # The timer is exact and counts this process alone; the limit is inherited by what it starts.
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)
    signal.setitimer(signal.ITIMER_PROF, boot["cpuSeconds"])


def _lower(limit: int, soft: int, hard: int) -> None:
    most = resource.getrlimit(limit)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(limit, (soft, hard))


def _outcome(source: str, boot: dict[str, Any], channel: Channel) -> bytes:
    """Run a program and return the ``done`` frame that tells of it."""
    most = boot["maxValueBytes"]
    try:
        value = _run(source, boot, channel)
        encoded = b"" if value is None else encode(value)
    except TooManyValues as error:
        return _failure("output-limit", f"the program returned too much: {error}", most)
    except NotJson as error:
        return _failure("invalid-output", f"what the program returned is not JSON: {error}", most)
    except MemoryError:
        return _failure("worker-exit", "the program ran out of memory", most)
    except BaseException as error:
        return _failure("exception", _described(error, source), most)
    if len(encoded) > most:
        return _failure("output-limit", "what the program returned is too large", most)
    return b'{"type":"done"' + (b',"value":' + encoded if encoded else b"") + b"}"


def _run(source: str, boot: dict[str, Any], channel: Channel) -> Any:
    scope: dict[str, Any] = {"__name__": _MAIN, "__builtins__": builtins}
    driver = driver_for(source, channel)
    calls = Calls(channel, driver, boot["maxValueBytes"])
    for namespace in boot["namespaces"]:
        scope.update(calls.globals_of(namespace))
    exec(_compiled(source), scope)
    program: Callable[[], Any] = scope.pop(_MAIN)
    body = program()
    if hasattr(body, "__anext__"):
        raise SyntaxError("a program cannot yield: it is the body of an async function")
    return driver.run(body)


def _compiled(source: str) -> CodeType:
    """Compile a program as the body of an async function; lines keep their numbers."""
    tree: Any = compile(source, _FILE, "exec", PyCF_ONLY_AST)
    module: Any = compile(f"async def {_MAIN}():\n pass", _FILE, "exec", PyCF_ONLY_AST)
    future = [node for node in tree.body if getattr(node, "module", "") == "__future__"]
    module.body[0].body = [node for node in tree.body if node not in future] or module.body[0].body
    module.body[:0] = future
    return compile(module, _FILE, "exec", dont_inherit=True)


def _failure(kind: str, message: str, most: int) -> bytes:
    if json_size(message) > most:
        kind, message = "output-limit", "the text of the program's failure is too large"
    return to_bytes({"type": "done", "error": {"kind": kind, "message": message}})


def _described(error: BaseException, source: str) -> str:
    """Return a traceback of the program's own frames; never raises."""
    # What an exception runs when it is looked at is the program's, and may raise anything.
    try:
        return _traceback(error, source)
    except BaseException:
        pass
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return "an exception that cannot be shown"


def _traceback(error: BaseException, source: str) -> str:
    import linecache
    import traceback

    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    report = traceback.TracebackException.from_exception(error)
    for part in _parts(report):
        if part.stack is not None:
            ours = os.path.dirname(__file__)
            kept = [frame for frame in part.stack if not frame.filename.startswith(ours)]
            part.stack = traceback.StackSummary.from_list(kept)
    return "".join(report.format()).rstrip("\n")


def _parts(report: Any) -> list[Any]:
    """All exceptions of a report: the error, its causes and the members of groups."""
    found: dict[int, Any] = {}
    work = [report]
    while work:
        part = work.pop()
        if part is not None and id(part) not in found:
            found[id(part)] = part
            work += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return list(found.values())
