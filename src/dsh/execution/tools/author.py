"""Writing a tool as a function: its type hints and docstring become what the model is told."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, overload

from dsh.base.json import JsonObject, JsonValue, dumps_str
from dsh.execution.tools.bodies import is_async
from dsh.execution.tools.callbacks import check_callbacks
from dsh.execution.tools.docstring import parse_docstring
from dsh.execution.tools.service import (
    CancelStyle,
    Resource,
    ToolArgsError,
    ToolDefinition,
    ToolExecution,
    ToolOutput,
    ToolRegistrationError,
    ToolResult,
    ToolResultFacts,
    ToolRunContext,
)
from dsh.model.messages import ContentBlock

_log = logging.getLogger("dsh.tools")

Rendered: TypeAlias = "str | Sequence[ContentBlock]"
"""What a ``render`` returns; a string stands for one text block."""


def define_tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    render: Callable[[Any, Any], Rendered] | None = None,
    output: JsonObject | type | None = None,
    presentation_meta: Callable[[Any, Any], JsonValue] | None = None,
    timeout_s: float | None = None,
    parallel: bool | Callable[[Any], bool] = False,
    resources: Callable[[Any], Iterable[Resource | str]] | None = None,
    polls: bool | Callable[[Any], bool] = False,
    present_call: Callable[[Any], Mapping[str, object] | None] | None = None,
    present_result: Callable[[Any, ToolResultFacts], Mapping[str, object] | None] | None = None,
    finalize_content: (
        Callable[[ToolExecution, ToolResult], Sequence[ContentBlock] | None] | None
    ) = None,
    cancel: CancelStyle = "task",
) -> ToolDefinition:
    """Make a tool of a function.

    The function takes either one pydantic model or plain annotated parameters; a parameter
    annotated `ToolRunContext` gets the running call and is not shown to the model. Parameter
    descriptions come from the docstring's ``Args`` section. ``X | None`` is an optional parameter.
    A function that is not ``async`` runs in a thread of its own.

    All callbacks below get the arguments as the function does: the model, or a model of the plain
    parameters. ``present_*``, ``parallel`` and ``polls`` also run on arguments from old logs: what
    no longer fits yields ``None`` and ``False``.

    Args:
        function: Returns the canonical value: JSON, a typed dict, a dataclass or a model.
        name: Default: the function's name.
        description: Default: the docstring's prose.
        render: What the model reads, from the arguments and the canonical JSON value. Default: a
            string as it is, other values as JSON text.
        output: Schema or type of the value, in place of the return annotation.
        presentation_meta: Durable facts for user interfaces, from the same two.
        timeout_s: Deadline in seconds; a running body is stopped then.
        parallel: Whether calls may overlap with other such calls, or which may.
        resources: What an overlapping call touches, such as ``file:/src/a.py``: calls that touch
            the same keep their order. A call whose resources cannot be told does not overlap.
        polls: Whether calls only wait for something outside, or which do; repeating these is no
            sign of an agent that is stuck.
        present_call: View of a call for user interfaces; see `dsh.execution.tools.views`.
        present_result: View of a result for user interfaces.
        finalize_content: Last word on the content of every outcome.
        cancel: How a running body is told to stop.

    Raises:
        ToolRegistrationError: the function cannot be read as a tool.
        JsonSchemaError: a type has no form that models understand.
    """
    from dsh.execution.tools.signature import read_parameters, read_return, resolve_hints

    tool = name or _name_of(function)
    prose = description if description is not None else parse_docstring(function.__doc__)[0]
    if not tool or not prose:
        lacks = f"tool {tool!r} needs a description or a docstring"
        raise ToolRegistrationError(lacks if tool else f"{function!r} needs a name as a tool")
    callbacks = {
        "render": render,
        "presentation_meta": presentation_meta,
        "parallel": parallel,
        "resources": resources,
        "polls": polls,
        "present_call": present_call,
        "present_result": present_result,
    }
    check_callbacks(
        tool, {key: given for key, given in callbacks.items() if given not in (None, True, False)}
    )
    namespace = _caller_names()
    parameters = read_parameters(function, tool, namespace)
    hints = resolve_hints(function, tool, namespace)
    signature = inspect.signature(function)
    returned = read_return(tool, hints.get("return"), signature.return_annotation, output)
    soft = functools.partial(_soft, tool, parameters.parse)

    return ToolDefinition(
        name=tool,
        description=prose,
        parameters=parameters.schema,
        output=ToolOutput(
            schema=returned.schema,
            render=_renderer(parameters.parse, render),
            presentation_meta=_typed(parameters.parse, presentation_meta),
        ),
        execute=_body(function, parameters.call, returned.dump),
        parse_arguments=parameters.parse,
        timeout_s=timeout_s,
        cancel=cancel,
        is_concurrency_safe=_classifier("parallel", parallel, soft),
        resources=_strict(parameters.parse, resources),
        polls=_classifier("polls", polls, soft),
        finalize_content=finalize_content,
        present_call=soft("present_call", present_call) if present_call else None,
        present_result=soft("present_result", present_result) if present_result else None,
    )


@overload
def tool(function: Callable[..., Any], /) -> ToolDefinition: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    render: Callable[[Any, Any], Rendered] | None = None,
    output: JsonObject | type | None = None,
    presentation_meta: Callable[[Any, Any], JsonValue] | None = None,
    timeout_s: float | None = None,
    parallel: bool | Callable[[Any], bool] = False,
    resources: Callable[[Any], Iterable[Resource | str]] | None = None,
    polls: bool | Callable[[Any], bool] = False,
    present_call: Callable[[Any], Mapping[str, object] | None] | None = None,
    present_result: Callable[[Any, ToolResultFacts], Mapping[str, object] | None] | None = None,
    finalize_content: (
        Callable[[ToolExecution, ToolResult], Sequence[ContentBlock] | None] | None
    ) = None,
    cancel: CancelStyle = "task",
) -> Callable[[Callable[..., Any]], ToolDefinition]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of the decorated function; see `define_tool` for the options."""
    if function is not None:
        return define_tool(function)
    return functools.partial(define_tool, **options)


def _name_of(function: Callable[..., Any]) -> str:
    own = str(getattr(function, "__name__", "")).lstrip("_")
    return own if own.isidentifier() else ""


def _caller_names() -> Mapping[str, Any]:
    """The local names where the tool is defined, so that local types can be annotations."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "functools"):
        frame = frame.f_back
    return dict(frame.f_locals)


def _body(
    function: Callable[..., Any],
    call: Callable[[Callable[..., Any], Any, ToolRunContext], Any],
    dump: Callable[[Any], JsonValue],
) -> Callable[[Any, ToolRunContext], Any]:
    """Wrap a function so that it stays what it is: a coroutine function or a blocking one."""
    if is_async(function):

        async def run_async(args: Any, run: ToolRunContext) -> JsonValue:
            return dump(await call(function, args, run))

        return run_async

    def run_blocking(args: Any, run: ToolRunContext) -> JsonValue:
        return dump(call(function, args, run))

    return run_blocking


def _renderer(
    parse: Callable[[JsonValue], Any], render: Callable[[Any, Any], Rendered] | None
) -> Callable[[JsonValue, Any], Sequence[ContentBlock]]:
    def blocks(arguments: JsonValue, value: Any) -> Sequence[ContentBlock]:
        rendered = _as_text(value) if render is None else render(parse(arguments), value)
        return [{"type": "text", "text": rendered}] if isinstance(rendered, str) else rendered

    return blocks


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps_str(value)


def _typed(
    parse: Callable[[JsonValue], Any], callback: Callable[[Any, Any], JsonValue] | None
) -> Callable[[JsonValue, Any], JsonValue] | None:
    if callback is None:
        return None
    return lambda arguments, value: callback(parse(arguments), value)


def _soft(
    tool: str, parse: Callable[[JsonValue], Any], what: str, callback: Callable[..., Any]
) -> Callable[..., Any | None]:
    def guarded(arguments: JsonValue, *rest: Any) -> Any | None:
        try:
            return callback(parse(arguments), *rest)
        except ToolArgsError:
            return None
        except Exception:
            _log.warning("%s of tool %r failed", what, tool, exc_info=True)
            return None

    return guarded


def _strict(
    parse: Callable[[JsonValue], Any],
    callback: Callable[[Any], Iterable[Resource | str]] | None,
) -> Callable[[JsonValue], Iterable[Resource | str]] | None:
    return None if callback is None else lambda arguments: callback(parse(arguments))


def _classifier(
    what: str, given: bool | Callable[[Any], bool], soft: Callable[..., Callable[..., Any]]
) -> Callable[[JsonValue], bool] | None:
    if given is False:
        return None
    decide = soft(what, (lambda _: True) if given is True else given)
    return lambda arguments: decide(arguments) is True
