"""Ask the selected model route, before anything is mounted, whether it can work at all."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dsh.loader.aliases import canonical
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import LoaderError
from dsh.loader.expr import Expr
from dsh.loader.expr_eval import ExprScope
from dsh.loader.fields import evaluate_field, evaluate_flag
from dsh.loader.rows import Row, is_group
from dsh.product.credentials.early import STORES, EarlyStores

_DEFAULT_MODEL = "dsh.control.default_model.plugin"


def check_route(
    rows: Sequence[Row],
    scope: ExprScope,
    environment: LaunchEnvironment,
    *,
    model: str | None = None,
    provider: str | None = None,
) -> str | None:
    """Return why the selected route cannot work, or None.

    A plugin module answers for its routes by ``routes`` (names, or a function of the row's
    config) and ``preflight(config, environment)``, where the environment also knows stored keys
    and settings, see `EarlyStores`. What cannot be known yet is left to the boot.

    Args:
        rows: The composed rows.
        scope: For expressions in them.
        environment: Where keys come from.
        model: ``[provider/]id`` from the command line; the default model when None.
        provider: Outranks what ``model`` says.
    """
    enabled = list(_enabled(rows, scope))
    stores = _stores(enabled, scope, environment)
    answering = [
        (module, config, set(_routes(module, config)))
        for row in enabled
        if (module := _preflight_module(str(row.get("name")))) is not None
        and (config := _config(row, scope)) is not None
    ]
    routes = {route for _, _, served in answering for route in served}
    selected = (
        provider or _split_provider(model, routes) or _default_provider(enabled, scope, stores)
    )
    for module, config, served in answering:
        if selected in served:
            problem: str | None = module.preflight(config, stores)
            return problem
    return None


def _enabled(rows: Iterable[Row], scope: ExprScope) -> Iterator[Row]:
    for row in rows:
        flag = row.get("disabled")
        if isinstance(flag, Expr):
            try:
                flag = evaluate_flag(flag, scope, str(row.get("id")), "disabled")
            except LoaderError:
                flag = False
        if flag:
            continue
        yield row
        if is_group(row) and isinstance(row.get("config"), list):
            yield from _enabled(row["config"], scope)


def _config(row: Row, scope: ExprScope) -> Mapping[str, Any] | None:
    try:
        config = evaluate_field(row.get("config"), scope, str(row.get("id")))
    except LoaderError:
        return None
    return config if isinstance(config, Mapping) else {}


def _routes(module: ModuleType, config: Mapping[str, Any]) -> Iterable[str]:
    routes = getattr(module, "routes", ())
    found: Iterable[str] = routes(config) if callable(routes) else routes
    return found


def _split_provider(model: str | None, routes: set[str]) -> str | None:
    head, slash, _ = (model or "").partition("/")
    return head if slash and head in routes else None


def _stores(rows: list[Row], scope: ExprScope, environment: LaunchEnvironment) -> EarlyStores:
    named = [(canonical(str(row.get("name"))).partition(":")[0], row) for row in rows]
    configs = {name: _config(row, scope) or {} for name, row in named if name in STORES}
    return EarlyStores(environment, configs, scope.home_path)


def _default_provider(rows: list[Row], scope: ExprScope, stores: EarlyStores) -> str | None:
    for row in rows:
        if canonical(str(row.get("name"))) == _DEFAULT_MODEL:
            config = {**(_config(row, scope) or {}), **stores.section("agent-default-model")}
            found = config.get("provider")
            return found if isinstance(found, str) else None
    return None


def _preflight_module(name: str) -> ModuleType | None:
    """Import a row's module if it has a preflight; others are not imported for the question."""
    path, _, attribute = canonical(name).partition(":")
    if attribute or not all(part.isidentifier() for part in path.split(".")):
        return None
    source = _source(path)
    if source is not None and b"preflight" not in source:
        return None
    try:
        module = import_module(path)
    except Exception:
        # Whatever is wrong with the module, mounting its row says it better.
        return None
    return module if callable(getattr(module, "preflight", None)) else None


def _source(path: str) -> bytes | None:
    """Return a module's source without importing it; None when it is not plainly a file."""
    top, *rest = path.split(".")
    package = sys.modules.get(top)
    for folder in getattr(package, "__path__", ()):
        base = Path(folder).joinpath(*rest)
        for file in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if file.is_file():
                return file.read_bytes()
    return None
