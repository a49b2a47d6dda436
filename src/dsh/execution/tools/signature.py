"""A function's parameters as a pydantic model, and its return type as a schema."""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import PydanticJsonSchemaWarning

from dsh.base.json import JsonObject, JsonValue, NotLossless, snapshot
from dsh.base.text import did_you_mean
from dsh.base.values import record
from dsh.execution.tools.arguments import describe, excerpt
from dsh.execution.tools.convert import output_schema, parameters_schema
from dsh.execution.tools.docstring import parse_docstring
from dsh.execution.tools.errors import VIOLATIONS_SHOWN
from dsh.execution.tools.hints import readable
from dsh.execution.tools.schema import json_type_of
from dsh.execution.tools.service import (
    JsonSchemaError,
    ToolArgsError,
    ToolOutputError,
    ToolRegistrationError,
    ToolRunContext,
)

_ANY_JSON = frozenset({"JsonValue", "Any", "object"})
_INPUT_CHARS = 60
_WORDS_CHARS = 1000
_JSON_FORMS = "use JSON types, a dataclass, a typed dict or a pydantic model"
_FURTHER = "\n\nFor further information"
"""Where the words of pydantic end that tell what is wrong."""


@record
class Parameters:
    """How JSON arguments become what a function takes."""

    tool: str
    model: type[BaseModel]
    whole: bool
    """The function takes the model itself, not its fields one by one."""
    args_name: str | None
    """Parameter that takes the model, when ``whole``."""
    run_name: str | None
    """Parameter that takes the run context, if any."""
    schema: JsonObject
    closed: bool
    absent: tuple[str, ...]
    """Required parameters that admit ``None``: the model may leave them out."""
    names: tuple[str, ...]
    """Those of the function, when it takes the fields one by one."""
    _last: tuple[object, BaseModel] | None = field(default=None, repr=False)

    def parse(self, arguments: JsonValue) -> BaseModel:
        """Check and convert arguments; the last result is kept for the callbacks of one call.

        Raises:
            ToolArgsError: one sentence a parameter that does not fit.
        """
        if self._last is not None and self._last[0] is arguments:
            return self._last[1]
        if not isinstance(arguments, dict):
            raise ToolArgsError(
                [f"they are a JSON {json_type_of(arguments)}, not an object"], tool=self.tool
            )
        given = arguments
        if missing := [name for name in self.absent if name not in arguments]:
            given = {**arguments, **dict.fromkeys(missing)}
        unknown = self._unknown(arguments) if self.closed else []
        try:
            parsed = self.model.model_validate(given)
        except ValidationError as error:
            violations = unknown + self._violations(error)
        else:
            violations = unknown
        if violations:
            raise ToolArgsError(violations, tool=self.tool)
        self._last = (arguments, parsed)
        return parsed

    def call(self, function: Callable[..., Any], parsed: BaseModel, run: ToolRunContext) -> Any:
        """Call the function with parsed arguments."""
        extra = {self.run_name: run} if self.run_name else {}
        if self.whole:
            return function(**{self.args_name or "args": parsed}, **extra)
        values = {name: getattr(parsed, name) for name in self.names}
        return function(**values, **extra)

    def _names(self) -> list[str]:
        properties = self.schema.get("properties")
        return list(properties) if isinstance(properties, Mapping) else []

    def _unknown(self, arguments: Mapping[str, Any]) -> list[str]:
        names = self._names()
        strange = (name for name in arguments if name not in names)
        return [
            f'unknown parameter "{excerpt(name, max_chars=_INPUT_CHARS)}"'
            f"{did_you_mean(name[:200], names)}; "
            + (f"allowed: {', '.join(names)}" if names else "this tool takes no parameters")
            for name in islice(strange, VIOLATIONS_SHOWN + 1)
        ]

    def _violations(self, error: ValidationError) -> list[str]:
        lines: dict[str, str] = {}
        for item in error.errors(include_url=False):
            path, node, rest = self._locate(item["loc"])
            if item["type"] == "extra_forbidden" and self.closed and len(item["loc"]) == 1:
                continue
            if len(rest) > 1:
                # inside one of several alternatives, which the schema has no names for
                inner = excerpt(".".join(map(str, rest)))
                lines[f"{path} {inner}"] = f'"{path}": as {inner}: {_reason(item["msg"])}'
            else:
                lines.setdefault(path or "arguments", self._sentence(path, node, dict(item)))
            if len(lines) > VIOLATIONS_SHOWN:
                break
        return list(lines.values())

    def _sentence(self, path: str, node: Mapping[str, Any], item: dict[str, Any]) -> str:
        kind = str(item["type"])
        if kind == "missing":
            return f'missing required parameter "{path}" ({describe(node)})'
        if kind == "extra_forbidden":
            return f'unknown parameter "{path}"'
        named = f'"{path}"' if path else "the arguments"
        if kind in ("value_error", "assertion_error"):
            words = str(item["msg"])
            return f"{named}: {excerpt(words.partition(', ')[2] or words, max_chars=_WORDS_CHARS)}"
        expected = describe(node)
        if expected == json_type_of(item.get("input")):
            return f"{named}: {_reason(item['msg'])}"
        return f"{named}: expected {expected}, got {_shown(item.get('input'))}"

    def _locate(
        self, loc: tuple[int | str, ...]
    ) -> tuple[str, Mapping[str, Any], tuple[int | str, ...]]:
        """Follow an error's location through the schema, up to where it is still JSON.

        Returns:
            The path, its schema, and the steps that lead on from there.
        """
        node: Any = self.schema
        path = ""
        for position, step in enumerate(loc):
            properties = node.get("properties") if isinstance(node, Mapping) else None
            if isinstance(step, str) and isinstance(properties, Mapping) and step in properties:
                path, node = f"{path}.{step}" if path else step, properties[step]
            elif isinstance(step, int) and isinstance(node.get("items"), Mapping):
                path, node = f"{path}[{step}]", node["items"]
            elif isinstance(step, str) and isinstance(node.get("additionalProperties"), Mapping):
                key, node = excerpt(step, max_chars=_INPUT_CHARS), node["additionalProperties"]
                path = f"{path}.{key}" if path else key
            elif isinstance(step, str) and not path and isinstance(properties, Mapping):
                return step, {}, ()
            else:
                return path, node, loc[position:]
        return path, node, ()


def read_parameters(
    function: Callable[..., Any], tool: str, namespace: Mapping[str, Any]
) -> Parameters:
    """Read what a tool function takes.

    Args:
        function: Its parameters need annotations; one annotated `ToolRunContext` gets the call.
        tool: Name for the sentences.
        namespace: Where names in annotations may be found beside the function's module.

    Raises:
        ToolRegistrationError: a parameter has no usable annotation.
        JsonSchemaError: a type has no form that models understand.
    """
    hints = resolve_hints(function, tool, namespace)
    run_name, plain = None, {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolRegistrationError(f"tool {tool!r}: parameter {name!r} must have a name")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolRegistrationError(f"tool {tool!r}: parameter {name!r} is positional-only")
        if hints.get(name) is ToolRunContext:
            run_name = name
        elif name.startswith("_") or name == "model_config":
            raise ToolRegistrationError(
                f"tool {tool!r}: {name!r} cannot be the name of a parameter; rename it, or take a "
                "pydantic model whose field has this alias"
            )
        elif name not in hints:
            raise ToolRegistrationError(f"tool {tool!r}: parameter {name!r} has no annotation")
        else:
            plain[name] = parameter
            with _about(f"parameter {name!r} of tool {tool!r}"):
                hints[name] = readable(hints[name])
    only = next(iter(plain)) if len(plain) == 1 else None
    if only and isinstance(hints[only], type) and issubclass(hints[only], BaseModel):
        model, whole = hints[only], True
    else:
        described = parse_docstring(function.__doc__)[1]
        model, whole = _model_of(tool, plain, hints, described), False
    return _parameters(tool, model, whole=whole, args_name=only, run_name=run_name)


def resolve_hints(
    function: Callable[..., Any], tool: str, namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """Resolve a function's annotations, keeping ``Annotated`` metadata.

    Raises:
        ToolRegistrationError: an annotation is no type, or names what does not exist at run time.
    """
    local = {"ToolRunContext": ToolRunContext, **namespace}
    target = function if inspect.isroutine(function) else type(function).__call__
    returned = getattr(target, "__annotations__", {}).get("return")
    hidden = returned if isinstance(returned, str) else None
    try:
        if hidden in _ANY_JSON | {"JsonObject"}:
            local |= dict.fromkeys(("JsonValue", "JsonObject"), Any)
        return typing.get_type_hints(target, localns=local, include_extras=True)
    except (SyntaxError, TypeError, AttributeError) as error:
        raise ToolRegistrationError(
            f"tool {tool!r}: its annotations cannot be read: {error}"
        ) from error
    except NameError as error:
        raise ToolRegistrationError(
            f"tool {tool!r}: {error}; import what its annotations name at run time, "
            "not under TYPE_CHECKING"
        ) from error


def _model_of(
    tool: str,
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, Any],
    described: Mapping[str, str],
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        default = ... if parameter.default is parameter.empty else parameter.default
        hint = hints[name]
        if name in described and not _documented(hint, default):
            hint = Annotated[hint, Field(description=described[name])]
        fields[name] = (hint, default)
    if unknown := sorted(described.keys() - parameters.keys() - hints.keys()):
        raise ToolRegistrationError(
            f"tool {tool!r}: its docstring describes {unknown[0]!r}, which is no parameter"
        )
    try:
        with warnings.catch_warnings():
            # A field may well have the name of a method of models, such as ``json``.
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute")
            model: type[BaseModel] = create_model(
                f"{tool}_arguments", __config__=ConfigDict(extra="forbid"), **fields
            )
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise ToolRegistrationError(
            _parameter_problem(tool, {name: hints[name] for name in parameters}, error)
        ) from error
    return model


def _parameter_problem(tool: str, hints: Mapping[str, Any], error: Exception) -> str:
    """Say which parameter a model cannot be made with."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except (PydanticUserError, NameError, TypeError, ValueError):
            return (
                f"tool {tool!r}: the type {_type_name(hint)} of parameter {name!r} has no "
                f"JSON form; {_JSON_FORMS}"
            )
    return f"tool {tool!r}: {str(error).partition(_FURTHER)[0].strip()}"


def _type_name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _documented(hint: Any, default: object) -> bool:
    extras = (*getattr(hint, "__metadata__", ()), default)
    return any(isinstance(extra, FieldInfo) and extra.description for extra in extras)


def _parameters(
    tool: str, model: type[BaseModel], *, whole: bool, args_name: str | None, run_name: str | None
) -> Parameters:
    closed = model.model_config.get("extra", "forbid") == "forbid"
    try:
        with warnings.catch_warnings():
            # A default that has no JSON form is not shown, that is all.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            generated = model.model_json_schema(mode="validation")
    except (PydanticUserError, AttributeError) as error:
        of_fields = {name: info.annotation for name, info in model.model_fields.items()}
        raise ToolRegistrationError(_parameter_problem(tool, of_fields, error)) from error
    absent = tuple(
        info.validation_alias if isinstance(info.validation_alias, str) else name
        for name, info in model.model_fields.items()
        if info.is_required() and type(None) in typing.get_args(info.annotation)
    )
    if absent and "required" in generated:
        rest = [name for name in generated["required"] if name not in absent]
        generated = {**generated, "required": rest}
    with _about(f"parameters of tool {tool!r}"):
        schema = parameters_schema(generated, closed=closed)
    return Parameters(
        tool=tool,
        model=model,
        whole=whole,
        args_name=args_name if whole else None,
        run_name=run_name,
        schema=schema,
        closed=closed,
        absent=absent,
        names=tuple(model.model_fields),
    )


@record
class ReturnValue:
    """How a function's return value becomes the canonical JSON value."""

    tool: str
    schema: JsonObject
    adapter: TypeAdapter[Any] | None

    def dump(self, value: Any) -> JsonValue:
        """Return the JSON form of a value; JSON itself is returned as it is.

        Raises:
            ToolOutputError: the value has no JSON form.
        """
        try:
            frozen: JsonValue = snapshot(value)
        except NotLossless as unfit:
            if self.adapter is None:
                raise ToolOutputError([unfit.message], tool=self.tool) from unfit
        else:
            return frozen
        try:
            dumped: JsonValue = self.adapter.dump_python(
                value, mode="json", by_alias=True, warnings="error"
            )
        except (ValueError, TypeError) as error:
            raise ToolOutputError([str(error)], tool=self.tool) from error
        return dumped


def read_return(
    tool: str, annotation: Any, raw_annotation: object, output: JsonObject | type | None
) -> ReturnValue:
    """Read what a tool function gives back.

    Args:
        tool: Name for the sentences.
        annotation: The resolved return annotation.
        raw_annotation: The annotation as written, to recognise the JSON aliases.
        output: A schema, or a type, that takes the place of the annotation.

    Raises:
        ToolRegistrationError: there is neither.
        JsonSchemaError: it is outside of the enforced subset.
    """
    if isinstance(output, Mapping):
        return ReturnValue(tool, output, None)
    if output is None:
        if raw_annotation in (inspect.Signature.empty, None) and annotation is None:
            raise ToolRegistrationError(
                f"tool {tool!r} has no return annotation; add one, or give output="
            )
        if raw_annotation == "JsonObject":
            return ReturnValue(tool, {"type": "object"}, None)
        if raw_annotation in _ANY_JSON or annotation in (Any, object):
            return ReturnValue(tool, {}, None)
    with _about(f"return value of tool {tool!r}"):
        kind = readable(annotation if output is None else output)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        generated = adapter.json_schema(mode="serialization", by_alias=True)
    except (PydanticUserError, NameError) as error:
        raise ToolRegistrationError(
            f"tool {tool!r}: its return type {_type_name(kind)} has no JSON form; {_JSON_FORMS}, "
            "or give output="
        ) from error
    with _about(f"return value of tool {tool!r}"):
        return ReturnValue(tool, output_schema(generated), adapter)


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Name what a schema belongs to that cannot be expressed."""
    try:
        yield
    except JsonSchemaError as error:
        raise JsonSchemaError(error.violations, of=what) from None


def _reason(message: str) -> str:
    """Put pydantic's sentence behind a colon."""
    return excerpt(message[:1].lower() + message[1:])


def _shown(value: object) -> str:
    kind = json_type_of(value)
    if kind in ("object", "array", "null"):
        return kind
    return f"{kind} {excerpt(repr(value), max_chars=_INPUT_CHARS)}"
