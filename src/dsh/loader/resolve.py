"""From a row's plugin name to the plugin."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dsh.base.text import nearest
from dsh.loader.aliases import ALIASES, canonical
from dsh.loader.errors import UnknownPlugin

ENTRY_POINTS: Final = "dsh.plugins"
"""Group of entry points whose names rows may use."""


def resolve_plugin(name: str, base: Path | None, builtins: Mapping[str, Any]) -> Any:
    """Import what a row names and return the plugin.

    Args:
        name: ``cordis:<builtin>``, a file (``./x.py``, ``../x``, absolute, ``file:``), an import
            path ``pkg.mod[:attribute]``, an entry point's name, or an npm name of upstream.
        base: The folder that relative files are in.
        builtins: What ``cordis:`` names.

    Raises:
        UnknownPlugin: nothing has this name, or it has no plugin in it; has the name as given.
        Exception: what the module raised while it was imported.
    """
    ours = canonical(name)
    if ours.startswith("cordis:"):
        if (builtin := builtins.get(ours.removeprefix("cordis:"))) is None:
            raise UnknownPlugin(name, "no such builtin" + _near(name, builtins))
        return builtin
    if ours.startswith(("./", "../", "/", "file:")):
        return plugin_of(_import_file(name, ours, base), name)
    path, _, attribute = ours.partition(":")
    if not all(part.isidentifier() for part in path.split(".")):
        return _entry_point(name, builtins)
    module = _import_path(path)
    if module is None:
        return _entry_point(name, builtins)
    return plugin_of(_attribute(module, attribute, name), name)


def plugin_of(value: Any, name: str) -> Any:
    """Return the plugin that a module holds; anything else is taken for the plugin itself.

    Raises:
        UnknownPlugin: the module has neither ``apply`` nor ``plugin``, or both.
    """
    if not isinstance(value, ModuleType):
        return value
    body, object_ = getattr(value, "apply", None), getattr(value, "plugin", None)
    if body is not None and object_ is not None:
        raise UnknownPlugin(name, "its module has both apply and plugin; keep one")
    if body is None and object_ is None:
        raise UnknownPlugin(name, "its module has neither apply nor plugin")
    return value if body is not None else object_


def base_folder(base_url: str | None) -> Path | None:
    """Return the folder behind a context's base URL."""
    if base_url is None:
        return None
    if base_url.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        return Path(unquote(urlsplit(base_url).path))
    return Path(base_url)


def _import_path(path: str) -> ModuleType | None:
    """Import a module; None when it, or a package above it, does not exist."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            return None
        raise


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    value: Any = module
    for part in attribute.split(".") if attribute else ():
        if not hasattr(value, part):
            raise UnknownPlugin(name, f"its module has no {attribute!r}")
        value = getattr(value, part)
    return value


def _import_file(name: str, path: str, base: Path | None) -> ModuleType:
    """Import a file, or a folder with an ``__init__.py``; one file is one module."""
    file = base_folder(path) if path.startswith("file:") else Path(path)
    if file is None or (not file.is_absolute() and base is None):
        raise UnknownPlugin(name, "a relative file needs a tree that has a folder")
    file = file if file.is_absolute() else (base or Path()) / file
    file = file.resolve()
    found = next((each for each in _spellings(file) if each.is_file()), None)
    if found is None:
        raise UnknownPlugin(name, f"no such file: {file}")
    key = f"dsh_file_{blake2b(str(found).encode(), digest_size=6).hexdigest()}_{found.stem}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, found)
    if spec is None or spec.loader is None:
        raise UnknownPlugin(name, f"not a Python file: {found}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def _spellings(file: Path) -> tuple[Path, ...]:
    return (file, file / "__init__.py", file.with_name(f"{file.name}.py"))


def _entry_point(name: str, builtins: Mapping[str, Any]) -> Any:
    from importlib.metadata import entry_points

    points = entry_points(group=ENTRY_POINTS)
    for point in points:
        if point.name == name:
            return plugin_of(point.load(), name)
    known = [*ALIASES, *ALIASES.values(), *(f"cordis:{key}" for key in builtins), *points.names]
    near = nearest(name, sorted(set(known)))
    hint = f'; did you mean "{near}"?' if near else ""
    raise UnknownPlugin(name, f"no module, file or installed plugin has this name{hint}")


def _near(name: str, builtins: Mapping[str, Any]) -> str:
    near = nearest(name, [f"cordis:{key}" for key in builtins])
    return f'; did you mean "{near}"?' if near else ""
