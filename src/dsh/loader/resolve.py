"""From a row's plugin name to the plugin."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from dsh.base.text import nearest
from dsh.loader.aliases import ALIASES, SCOPE, canonical, why_unserved
from dsh.loader.api import check_api
from dsh.loader.errors import UnknownPlugin
from dsh.loader.resolve_errors import BrokenPlugin, UnservedPlugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
        UnservedPlugin: the name is upstream's, and this version has nothing for it.
        BrokenPlugin: its module fails while it is imported; names the line.
        UnsuitableApi: its package was made for another plugin API; none of its code has run.
        ConfigFileError: its package's declaration of the API is malformed.
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
    module = _import_path(path, name)
    if module is None:
        return _entry_point(name, builtins)
    if not attribute and not _holds_plugin(module) and _points(name):
        # A plugin may be called like a module that has nothing to do with it.
        return _entry_point(name, builtins)
    return plugin_of(_attribute(module, attribute, name), name)


def module_of(name: str, base: Path | None) -> str | None:
    """Return the name of the module that a row's plugin comes from; None for a builtin.

    Nothing is imported, and the module may be missing.

    Raises:
        UnknownPlugin: there is no such file.
    """
    ours = canonical(name)
    if ours.startswith("cordis:"):
        return None
    if ours.startswith(("./", "../", "/", "file:")):
        return _file_module(_find_file(name, ours, base))
    path, _, attribute = ours.partition(":")
    loaded = sys.modules.get(path)
    if loaded is not None and (attribute or _holds_plugin(loaded)):
        return path
    return next((point.module for point in _points(name)), path)


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


def _holds_plugin(module: ModuleType) -> bool:
    return hasattr(module, "apply") or hasattr(module, "plugin")


def _import_path(path: str, name: str) -> ModuleType | None:
    """Import a module; None when it, or a package above it, does not exist."""
    check_api(path)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            return None
        raise BrokenPlugin(name, error) from error
    except Exception as error:
        raise BrokenPlugin(name, error) from error


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    value: Any = module
    for part in attribute.split(".") if attribute else ():
        if not hasattr(value, part):
            raise UnknownPlugin(name, f"its module has no {attribute!r}")
        value = getattr(value, part)
    return value


def _import_file(name: str, path: str, base: Path | None) -> ModuleType:
    """Import a file, or a folder with an ``__init__.py``; one file is one module."""
    found = _find_file(name, path, base)
    key = _file_module(found)
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, found)
    if spec is None or spec.loader is None:
        raise UnknownPlugin(name, f"not a Python file: {found}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        for each in [each for each in sys.modules if each == key or each.startswith(f"{key}.")]:
            del sys.modules[each]
        if isinstance(error, Exception):
            raise BrokenPlugin(name, error) from error
        raise
    return module


def _file_module(file: Path) -> str:
    """Return the name in ``sys.modules`` of a plugin that is a file."""
    return f"dsh_file_{blake2b(str(file).encode(), digest_size=6).hexdigest()}_{file.stem}"


def _find_file(name: str, path: str, base: Path | None) -> Path:
    file = base_folder(path) if path.startswith("file:") else Path(path)
    if file is None or (not file.is_absolute() and base is None):
        raise UnknownPlugin(name, "a relative file needs a tree that has a folder")
    try:
        file = (file if file.is_absolute() else (base or Path()) / file).resolve()
        found = next((each for each in _spellings(file) if each.is_file()), None)
        folder = found is None and file.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise UnknownPlugin(name, f"no usable path: {error}") from error
    if found is None:
        what = "a folder without __init__.py" if folder else "no such file"
        raise UnknownPlugin(name, f"{what}: {file}")
    return found


def _spellings(file: Path) -> tuple[Path, ...]:
    return (file, file / "__init__.py", file.with_name(f"{file.name}.py"))


def _points(name: str) -> list[EntryPoint]:
    """Return the installed plugins of a name, one for each place in code that it means."""
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=name)}
    return list(found.values())


def _entry_point(name: str, builtins: Mapping[str, Any]) -> Any:
    points = _points(name)
    if not points:
        raise _unknown(name, builtins)
    if len(points) > 1:
        owners = ", ".join(sorted(_distribution(point) for point in points))
        raise UnknownPlugin(name, f"several packages install a plugin of this name: {owners}")
    point = points[0]
    module = _import_path(point.module, name)
    if module is None:
        problem = f"package {_distribution(point)} promises it and has no module {point.module}"
        raise UnknownPlugin(name, f"{problem}; install that package again")
    return plugin_of(_attribute(module, point.attr or "", name), name)


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _unknown(name: str, builtins: Mapping[str, Any]) -> UnknownPlugin:
    from importlib.metadata import entry_points

    if (reason := why_unserved(name)) is not None:
        return UnservedPlugin(name, reason)
    installed = entry_points(group=ENTRY_POINTS).names
    known = {*ALIASES, *ALIASES.values(), *(f"cordis:{key}" for key in builtins), *installed}
    near = nearest(name, sorted(known))
    hint = f'; did you mean "{near}"?' if near else ""
    whose = " of upstream" if name.startswith(SCOPE) else ""
    return UnknownPlugin(name, f"no module, file or installed plugin{whose} has this name{hint}")


def _near(name: str, builtins: Mapping[str, Any]) -> str:
    near = nearest(name, [f"cordis:{key}" for key in builtins])
    return f'; did you mean "{near}"?' if near else ""
