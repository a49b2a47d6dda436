"""The plugin API: its version, and the range of it that a plugin was made for.

A package says in ``dsh.toml``, a data file at its top, which versions it fits: one line,
``dsh-api = ">=1,<2"``. The file is read and nothing of the package is imported. A package without
the file is taken as it is; a range that does not include `API_VERSION` refuses the whole package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsh.base.text import did_you_mean
from dsh.loader.errors import ConfigFileError, LoaderError

API_VERSION: Final = "1.0"
"""What plugins build on: the second number grows with additions, the first with breaks."""

DECLARATION: Final = "dsh.toml"
"""The file at the top of a plugin's package that holds its range."""

FIELD: Final = "dsh-api"
"""The field of `DECLARATION` that holds the range."""

_WHAT: Final = "plugin declaration"
_EXAMPLE: Final = '">=1,<2"'
_MAX_LENGTH: Final = 200
_CLAUSE: Final = re.compile(
    r"(?P<op>>=|<=|==|!=|~=|>|<)\s*(?P<version>\d{1,9}(?:\.\d{1,9}){0,4})(?P<any>\.\*)?",
    re.ASCII,
)


class UnsuitableApi(LoaderError):
    """A package was made for another version of the plugin API.

    Attributes:
        package: The package, as imports call it.
        wanted: The range that it declares.
    """

    code = "PLUGIN_API"

    def __init__(self, package: str, wanted: str) -> None:
        super().__init__(
            f'package "{package}" was made for dsh API {wanted}, and this dsh has {API_VERSION}; '
            "use another version of it or of dsh"
        )
        self.package, self.wanted = package, wanted


def api_allows(wanted: str, version: str = API_VERSION) -> bool:
    """Tell whether a range includes a version.

    Args:
        wanted: Clauses with commas between them, all of which must hold: ``>=``, ``>``, ``<=``,
            ``<``, ``==``, ``!=`` or ``~=``, and a dotted number; ``==1.*`` and ``!=1.*`` too.
        version: A dotted number.

    Raises:
        ValueError: the range is not written like this; says what is wrong.
    """
    have = _numbers(version)
    # All of them are read, so that a mistake in a later one is told, too.
    holding = [_holds(clause.strip(), have) for clause in _clauses(wanted)]
    return all(holding)


def declared_api(folder: Path) -> str | None:
    """Return the range that a package's folder declares, or None when it has no declaration.

    Raises:
        ConfigFileError: the declaration cannot be read or is malformed; names file and line.
    """
    path = folder / DECLARATION
    data = _read(path)
    if data is None:
        return None
    wanted = data.pop(FIELD, None)
    if isinstance(wanted, str):
        try:
            suitable = api_allows(wanted)
        except ValueError as error:
            raise _malformed(path, f"{FIELD} = {wanted!r}: {error}") from error
        if not suitable:
            # A later API may have fields that this one does not know.
            return wanted
    for name in data:
        raise _malformed(path, f"unknown field {name!r}{did_you_mean(name, (FIELD,))}")
    if not isinstance(wanted, str):
        found = "is missing" if wanted is None else f"must be a text, got {wanted!r}"
        raise _malformed(path, f"{FIELD} {found}; write {FIELD} = {_EXAMPLE}")
    return wanted


def check_api(module: str, places: Sequence[str] | None = None) -> None:
    """Refuse a module whose package was made for another API; nothing of it is imported.

    Args:
        module: An import path; its first part is the package. Those of dsh itself always fit.
        places: Where to look for the package; where imports look when None.

    Raises:
        UnsuitableApi: the declared range does not include `API_VERSION`.
        ConfigFileError: the declaration is malformed.
    """
    package = module.partition(":")[0].partition(".")[0]
    if package == "dsh":
        return
    for folder in package_folders(package, places):
        wanted = declared_api(folder)
        if wanted is not None and not api_allows(wanted):
            raise UnsuitableApi(package, wanted)


def package_folders(package: str, places: Sequence[str] | None = None) -> tuple[Path, ...]:
    """Return where a package's files are, without importing any part of it.

    Args:
        package: An import path; parts after the first are folders of the first.
        places: Folders to look in; where imports look when None.

    Returns:
        Nothing when there is no such package, or when it is a module without a folder; several
        folders for a namespace package.
    """
    top, *rest = package.split(".")
    folders = (Path(each).joinpath(*rest) for each in _locations(top, places))
    return tuple(each for each in folders if each.is_dir())


def _locations(top: str, places: Sequence[str] | None) -> Sequence[str]:
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if places is None and (loaded := sys.modules.get(top)) is not None:
        return tuple(getattr(loaded, "__path__", ()))
    try:
        spec = PathFinder.find_spec(top, None if places is None else list(places))
        if spec is None and places is None:
            # Some development installs are known to a finder of their own alone.
            spec = find_spec(top)
    except (ImportError, ValueError):
        return ()
    return tuple((spec and spec.submodule_search_locations) or ())


def _read(path: Path) -> dict[str, object] | None:
    import tomllib

    from dsh.loader.yaml import read_text

    try:
        return tomllib.loads(read_text(path, what=_WHAT))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (None, None)
        problem = re.sub(r" \(at .*\)$", "", str(error)) or "not TOML"
        raise ConfigFileError(
            "parse", str(path), problem, what=_WHAT, line=line, column=column
        ) from error


def _malformed(path: Path, problem: str) -> ConfigFileError:
    return ConfigFileError("validate", str(path), problem, what=_WHAT)


def _clauses(wanted: str) -> list[str]:
    if not wanted.strip():
        raise ValueError(f"the range is empty; write {_EXAMPLE}")
    if len(wanted) > _MAX_LENGTH:
        raise ValueError(f"the range is longer than {_MAX_LENGTH} characters")
    return wanted.split(",")


def _holds(clause: str, have: tuple[int, ...]) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"{clause!r} is no comparison with a version; write {_EXAMPLE}")
    op, text = match["op"], match["version"]
    wanted = _numbers(text)
    places = text.count(".") + 1
    if match["any"] is not None:
        if op not in {"==", "!="}:
            raise ValueError(f"{clause!r}: .* goes with == and != alone")
        return (_padded(have)[:places] == _padded(wanted)[:places]) == (op == "==")
    if op == "~=":
        if places == 1:
            raise ValueError(f"{clause!r}: ~= needs two numbers, such as ~=1.2")
        return have >= wanted and _padded(have)[: places - 1] == _padded(wanted)[: places - 1]
    return {
        ">=": have >= wanted,
        "<=": have <= wanted,
        ">": have > wanted,
        "<": have < wanted,
        "==": have == wanted,
        "!=": have != wanted,
    }[op]


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers without zeros at the end, so that 1 equals 1.0."""
    numbers = [int(each) for each in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * 8
