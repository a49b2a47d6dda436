"""Packages as people write them: names with versions, wheels, folders, addresses."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from dsh.product.plugins.errors import SpecError

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS: Final = r"(?:\[[A-Za-z0-9._, -]*\])?"
_CLAUSE: Final = r"(?:===|~=|==|!=|<=|>=|<|>)\s*[A-Za-z0-9.!+*_-]+"
_RANGE: Final = rf"(?:{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?"
_BY_NAME: Final = re.compile(
    rf"(?P<name>{_NAME})\s*(?P<rest>{_EXTRAS}\s*{_RANGE}\s*(?:;.*)?)", re.DOTALL
)
_BY_ADDRESS: Final = re.compile(
    rf"(?P<name>{_NAME})\s*(?P<extras>{_EXTRAS})\s*@\s*(?P<url>[a-z+]+:\S+)"
)
_REPOSITORIES: Final = ("git+", "hg+", "svn+", "bzr+")
_WEB: Final = ("https://", "http://")
_OWN_PREFIXES: Final = ("file:", "link:")
_SOURCE: Final = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")


class Spec(NamedTuple):
    """One package to install."""

    text: str
    """As it was written, or as the manifest has it; errors show it."""
    name: str | None
    """Its normalised name; None when only installing it will tell."""
    requirement: str
    """What pip is given."""
    recorded: str
    """What the manifest keeps of it."""
    source: str = ""
    """What it is, when installing it means to build it: ``a folder``, ``a repository``."""
    address: str = ""
    """Its address without revision and fragment, to recognise it in pip's report."""


def normalised(name: str) -> str:
    """Return a distribution's name in the one form that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_spec(text: str, base: Path) -> Spec:
    """Read a package as it is written on a command line.

    Args:
        text: A name with an optional version range, the path of a wheel or folder (also with
            ``file:`` or ``link:`` in front), or the address of a wheel, archive or repository.
        base: What relative paths are relative to.

    Raises:
        SpecError: it is none of these, or there is no such file.
    """
    written = text.strip()
    by_address = _BY_ADDRESS.fullmatch(written)
    if by_address is not None:
        address = by_address["url"]
        if address.startswith("file:"):
            return _path(text, address, base)
        return _address(text, address, by_address["name"], by_address["extras"])
    if written.startswith((*_REPOSITORIES, *_WEB)):
        return _address(text, written, None, "")
    if _is_path(written):
        return _path(text, written, base)
    match = _BY_NAME.fullmatch(written)
    if match is None:
        raise SpecError(text, _advice(written))
    name, rest = match["name"], match["rest"].strip()
    return Spec(text, normalised(name), f"{name}{rest}", rest or "*")


def recorded_spec(name: str, recorded: str, base: Path) -> Spec:
    """Read a package as a manifest keeps it.

    Args:
        name: The dependency's name.
        recorded: ``*``, a version or range, ``file:...`` or an address.
        base: The manifest's folder.

    Raises:
        SpecError: pip cannot install it.
    """
    text = f"{name}: {recorded}"
    rest = recorded.strip()
    if not re.fullmatch(_NAME, name):
        raise SpecError(text, "is no name of a Python package")
    if rest.startswith(_OWN_PREFIXES):
        return _path(text, rest, base)._replace(name=normalised(name))
    if rest.startswith((*_REPOSITORIES, *_WEB)):
        return _address(text, rest, name, "")
    if rest in {"*", "latest"}:
        rest = ""
    elif rest[:1].isdigit():
        rest = f"=={rest}"
    match = _BY_NAME.fullmatch(f"{name}{rest}")
    if match is None or normalised(match["name"]) != normalised(name):
        raise SpecError(text, "is no version range that pip knows; write >=1.2,<2")
    return Spec(text, normalised(name), f"{name}{rest}", recorded)


def options_of(recorded: str) -> tuple[str, str]:
    """Return the extras, in brackets, and the marker of what a manifest keeps."""
    rest = recorded.strip()
    if rest.startswith((*_OWN_PREFIXES, *_REPOSITORIES, *_WEB)):
        found = re.search(r"\[[A-Za-z0-9._, -]+\]$", rest)
        return (found[0] if found else ""), ""
    found = re.match(r"\[[A-Za-z0-9._, -]+\]", rest)
    return (found[0] if found else ""), rest.partition(";")[2].strip()


def wheel_name(file: str) -> str:
    """Return the normalised name of the distribution in a wheel, by its file name."""
    return normalised(file.partition("-")[0])


def wheel_version(file: str) -> str:
    """Return the version of the distribution in a wheel, by its file name."""
    return file.split("-")[1] if file.count("-") > 1 else ""


def bare_address(url: str) -> str:
    """Return an address without the repository prefix, revision, query and fragment."""
    prefix = next((each for each in _REPOSITORIES if url.startswith(each)), "")
    scheme, _, rest = url.removeprefix(prefix).partition("#")[0].partition("?")[0].partition("://")
    place, slash, path = rest.partition("/")
    if prefix:
        path = path.partition("@")[0]
    return unquote(f"{scheme}://{place.rpartition('@')[2]}{slash}{path}")


def _is_path(text: str) -> bool:
    if text.startswith((*_OWN_PREFIXES, ".", "/", "~/")):
        return True
    return (os.sep in text and not text.startswith("@")) or text.lower().endswith(
        (".whl", *_SOURCE)
    )


def _path(text: str, written: str, base: Path) -> Spec:
    """Read a local wheel, archive or folder; the prefix that it has is kept."""
    prefix = next((each for each in _OWN_PREFIXES if written.startswith(each)), "")
    place = written.removeprefix(prefix)
    if prefix and place.startswith("//"):
        place = unquote(urlsplit(f"file:{place}").path)
    extras = re.search(rf"{_EXTRAS}$", place)
    wanted = extras[0] if extras and extras[0] and not Path(base, place).exists() else ""
    place = place[: len(place) - len(wanted)]
    path = Path(os.path.normpath(base / Path(place).expanduser()))
    name, source = _look_at(text, path)
    return Spec(
        text,
        name,
        f"{path}{wanted}",
        f"{prefix or 'file:'}{path}{wanted}",
        source=source,
        address=bare_address(path.as_uri()),
    )


def _look_at(text: str, path: Path) -> tuple[str | None, str]:
    """Return the name of what a path holds, and what kind of source it is, if it is one."""
    if path.is_dir():
        if not any((path / each).is_file() for each in ("pyproject.toml", "setup.py")):
            raise SpecError(text, f"{path} holds no pyproject.toml, so it is no Python project")
        return _project_name(path / "pyproject.toml"), "a folder"
    if not path.is_file():
        raise SpecError(text, f"there is no file or folder {path}")
    lowered = path.name.lower()
    if lowered.endswith(".whl"):
        if path.name.count("-") < 4:
            raise SpecError(text, f"{path.name} is not named as a wheel is")
        return wheel_name(path.name), ""
    if lowered.endswith(_SOURCE):
        return None, "a source archive"
    raise SpecError(text, f"{path} is neither a wheel, nor a source archive, nor a folder")


def _project_name(path: Path) -> str | None:
    import tomllib

    try:
        project = tomllib.loads(path.read_text("utf-8")).get("project")
    except (OSError, ValueError):
        return None
    name = project.get("name") if isinstance(project, dict) else None
    return normalised(name) if isinstance(name, str) else None


def _address(text: str, url: str, name: str | None, extras: str) -> Spec:
    source = ""
    if url.startswith(_REPOSITORIES):
        source = "a repository"
    elif not url.startswith(_WEB):
        raise SpecError(text, "the address must begin with https:, file: or git+https:")
    elif urlsplit(url).path.lower().endswith(".whl"):
        name = name or wheel_name(unquote(urlsplit(url).path.rpartition("/")[2]))
    else:
        source = "a source archive"
    return Spec(
        text,
        normalised(name) if name else None,
        f"{name}{extras} @ {url}" if name else url,
        url,
        source=source,
        address=bare_address(url),
    )


def _advice(written: str) -> str:
    if written.startswith("@"):
        return "is an npm package; dsh installs Python packages"
    match = re.fullmatch(rf"({_NAME})@(.+)", written)
    if match is not None:
        return f"is not how pip names a version; write {match[1]}=={match[2]}"
    if written.startswith(("github:", "gitlab:", "bitbucket:")):
        return "is not how pip names a repository; write git+https://..."
    return "is neither a package's name with a version range, nor a path, nor an address"
