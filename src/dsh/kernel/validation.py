"""Config validation by whatever a plugin declares as ``Config``.

Pydantic is recognised when the plugin's module has loaded it; it is never imported here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dsh.kernel.errors import ValidationError


def validate_config(model: Any, value: Any) -> Any:
    """Return the value a plugin's body gets.

    Args:
        model: A pydantic model, a ``TypeAdapter``, a dataclass, an object with ``validate``, or
            None, which passes the value through untouched.
        value: The raw config; None counts as an empty mapping for models and dataclasses.

    Raises:
        ValidationError: the value does not fit, or the validator is asynchronous.
    """
    if model is None:
        return value
    check = _validator(model)
    try:
        result = check(value)
    except ValidationError:
        raise
    except Exception as error:
        raise ValidationError(_issues(error)) from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ValidationError([("asynchronous validation is not supported", "")])
    return result


def checked_fields(
    raw: object, checks: Mapping[str, tuple[Callable[[Any], bool], str]]
) -> Mapping[str, Any]:
    """Return a raw config whose fields are all known and fit.

    For the ``validate`` of a small config that every start mounts: a pydantic model costs a
    millisecond.

    Args:
        raw: None counts as an empty mapping.
        checks: By field, what holds for its value, and what is expected, in words.

    Raises:
        ValidationError: names every field that does not fit.
    """
    given = {} if raw is None else raw
    if not isinstance(given, Mapping):
        raise ValidationError([(f"expected a mapping, got {type(given).__name__}", "")])
    issues = []
    for name, found in given.items():
        if name not in checks:
            issues.append((f"unknown field; there are {', '.join(checks)}", str(name)))
        elif not checks[name][0](found):
            issues.append((f"expected {checks[name][1]}, got {found!r}", name))
    if issues:
        raise ValidationError(issues)
    return given


def _validator(model: Any) -> Callable[[Any], Any]:
    if hasattr(model, "model_validate"):
        return lambda value: model.model_validate({} if value is None else value)
    if hasattr(model, "validate_python"):
        return model.validate_python  # type: ignore[no-any-return]
    if isinstance(model, type) and hasattr(model, "__dataclass_fields__"):
        return lambda value: _build_dataclass(model, value)
    if callable(getattr(model, "validate", None)):
        return model.validate  # type: ignore[no-any-return]
    raise ValidationError([(f"{model!r} cannot validate: it has no validate()", "")])


def _build_dataclass(model: type, value: Any) -> Any:
    if isinstance(value, model):
        return value
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise ValidationError([(f"expected a mapping, got {type(value).__name__}", "")])
    fields: Mapping[str, Any] = model.__dataclass_fields__  # type: ignore[attr-defined]
    known = {name for name, field in fields.items() if field.init}
    issues = [("unknown field", str(name)) for name in value if name not in known]
    missing = [name for name in known if name not in value and _required(fields[name])]
    issues += [("field is required", name) for name in fields if name in missing]
    if issues:
        raise ValidationError(issues)
    return model(**value)


def _required(field: Any) -> bool:
    missing = sys.modules["dataclasses"].MISSING
    return field.default is missing and field.default_factory is missing


def _issues(error: Exception) -> list[tuple[str, str]]:
    errors = getattr(error, "errors", None)
    if callable(errors):
        try:
            found = [(_message(item), ".".join(map(str, item["loc"]))) for item in errors()]
        except Exception:
            found = []
        if found:
            return found
    return [(str(error) or type(error).__name__, "")]


def _message(item: Mapping[str, Any]) -> str:
    # What a validator of ours raises says all there is; pydantic's mark before it is no news.
    return str(item["msg"]).removeprefix("Value error, ")
