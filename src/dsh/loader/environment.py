"""The environment of one launch: inherited variables over two ``.env`` files, frozen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple

from dsh.loader.reading import read_bounded

__all__ = ["EnvSource", "EnvValue", "LaunchEnvironment", "fenced", "parse_env"]

EnvSource = Literal["process", "project-env", "user-env"]
"""Where a value came from, most trusted first."""

SOURCES: Final[tuple[EnvSource, ...]] = ("process", "project-env", "user-env")

MAX_FILE_BYTES: Final = 1 << 20
"""Largest ``.env`` that is read."""

_FENCED_NAMES: Final = """
    PATH HOME USERPROFILE SHELL NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS LD_PRELOAD
    LD_LIBRARY_PATH LD_AUDIT BASH_ENV ENV SHELLOPTS BASHOPTS PERL5OPT PERL5LIB PYTHONSTARTUP
    PYTHONPATH PYTHONHOME PYTHONUSERBASE PYTHONBREAKPOINT PYTHONWARNINGS VIRTUAL_ENV RUBYOPT
    RUBYLIB JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS GIT_SSH GIT_SSH_COMMAND
    GIT_EXTERNAL_DIFF GIT_PAGER GIT_EDITOR GIT_ASKPASS SSH_ASKPASS GIT_CONFIG_GLOBAL
    GIT_CONFIG_SYSTEM GIT_CONFIG_COUNT EDITOR VISUAL PAGER BROWSER DEEPSEEK_BASE_URL
    DEEPSEEK_SEARCH_BASE_URL SSL_CERT_FILE SSL_CERT_DIR HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
    REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_TLS_REJECT_UNAUTHORIZED
"""
_FENCED: Final = frozenset(_FENCED_NAMES.split())
_FENCED_PREFIXES: Final = ("DSH_", "XDG_", "DYLD_", "BASH_FUNC_")
_SECRET_NAMES: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_SECRET_LENGTH: Final = 8
_LINE: Final = re.compile(
    r"""
    ^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*=[ \t]*
    (?: '([^']*+)' | "((?:\\.|[^"\\])*+)" | `([^`]*+)`
      | ((?: [^ \t\r\n\#] | (?<![ \t=])\# | [ \t]++(?=[^ \t\r\n\#]) )*+)
    )
    [ \t]*+(?:(?<=[ \t'"`=])\#[^\r\n]*)?\r?$
    """,
    re.MULTILINE | re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


class EnvValue(NamedTuple):
    """One resolved variable."""

    value: str
    source: EnvSource
    path: Path | None
    """The file it came from; None for an inherited one."""


class LaunchEnvironment:
    """The variables of one launch, resolved once; workspaces opened later add nothing."""

    name: ClassVar[str] = "launch_environment"

    __slots__ = ("_layers",)

    def __init__(
        self,
        process: Mapping[str, str],
        *,
        project: Mapping[str, str] | None = None,
        project_path: Path | None = None,
        user: Mapping[str, str] | None = None,
        user_path: Path | None = None,
    ) -> None:
        self._layers: Mapping[EnvSource, tuple[Mapping[str, str], Path | None]] = MappingProxyType(
            {
                "process": (MappingProxyType(dict(process)), None),
                "project-env": (MappingProxyType(dict(project or {})), project_path),
                "user-env": (MappingProxyType(dict(user or {})), user_path),
            }
        )

    def get(self, name: str) -> EnvValue | None:
        """Return a variable from the most trusted layer that has it."""
        return self.get_from(name, SOURCES)

    def get_from(self, name: str, sources: Iterable[EnvSource]) -> EnvValue | None:
        """Return a variable from the named layers only, in the order of trust."""
        wanted = set(sources)
        for source in SOURCES:
            if source in wanted:
                values, path = self._layers[source]
                if name in values:
                    return EnvValue(values[name], source, path)
        return None

    def value(self, name: str) -> str | None:
        """Return the text of a variable, or None."""
        found = self.get(name)
        return None if found is None else found.value

    def layer(self, source: EnvSource) -> Mapping[str, str]:
        """Return the variables that one layer sets."""
        return self._layers[source][0]

    def redact(self, text: str) -> str:
        """Return a text without the values of variables that are secrets by their names."""
        for source in SOURCES:
            for name, value in self.layer(source).items():
                if len(value) >= _SECRET_LENGTH and name.upper().endswith(_SECRET_NAMES):
                    text = text.replace(value, f"<{name}>")
        return text

    def __repr__(self) -> str:
        # Values may be secrets: show how many there are, not what.
        counts = ", ".join(f"{source}: {len(self.layer(source))}" for source in SOURCES)
        return f"LaunchEnvironment({counts})"


def load_environment(
    home: Path,
    cwd: Path,
    process: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> LaunchEnvironment:
    """Read both files once and resolve the layers; the process environment is not changed.

    A name that only the user may set is ignored in a project's file, with one warning. Where the
    working folder is the home folder, its file is read once, as the project's, and may set any
    name: it is the user's own.

    Args:
        home: Has the user's ``.env``.
        cwd: Has the project's; its parents are not searched.
        process: The inherited variables; ``os.environ`` when None.
        warn: Called with a sentence for what was left out.
    """
    tell = warn or (lambda _: None)
    # A circle of links is no error here: whatever is read below it says so.
    own = os.path.realpath(cwd) == os.path.realpath(home)
    project_path, user_path = cwd / ".env", home / ".env"
    project = _read(project_path, tell)
    if not own:
        project = _without_fenced(project, project_path, tell)
    user = {} if own else _read(user_path, tell)
    return LaunchEnvironment(
        os.environ if process is None else process,
        project=project,
        project_path=project_path,
        user=user,
        user_path=user_path,
    )


def publish_user_values(environment: LaunchEnvironment) -> None:
    """Copy the user's own file into ``os.environ``, so that libraries see it.

    Inherited names keep their values. A project's values are never copied.
    """
    for name, value in environment.layer("user-env").items():
        os.environ.setdefault(name, value)


def fenced(name: str) -> bool:
    """Tell whether a project's ``.env`` may not set a name, whatever its case."""
    upper = name.upper()
    return upper in _FENCED or upper.startswith(_FENCED_PREFIXES)


def parse_env(text: str) -> dict[str, str]:
    r"""Return the variables of a ``.env`` text; lines that set nothing are passed over.

    Values may be bare (a `` #`` starts a comment), or quoted by ``'``, ``"`` or a backtick over
    several lines. Only double quotes know the escapes ``\n \r \t \" \\``. Nothing is expanded.
    """
    values: dict[str, str] = {}
    for match in _LINE.finditer(text.removeprefix("\ufeff")):
        name, single, double, tick, bare = match.groups()
        if double is not None:
            value = _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[1]), double)
        else:
            value = next(part for part in (single, tick, bare) if part is not None)
        values[name] = value.replace("\r\n", "\n")
    return values


def _read(path: Path, warn: Callable[[str], None]) -> dict[str, str]:
    try:
        data = read_bounded(path, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            warn(f"failed to load .env: {path}: larger than {MAX_FILE_BYTES} bytes")
            return {}
        values = parse_env(data.decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            warn(f"failed to load .env: {path}: the link leads to no file")
        return {}
    except OSError as error:
        warn(f"failed to load .env: {path}: {(error.strerror or 'unreadable').lower()}")
        return {}
    except UnicodeDecodeError:
        warn(f"failed to load .env: {path}: not UTF-8")
        return {}
    if any("\0" in value for value in values.values()):
        warn(f"failed to load .env: {path}: a value contains NUL")
        return {}
    return values


def _without_fenced(
    values: dict[str, str], path: Path, warn: Callable[[str], None]
) -> dict[str, str]:
    refused = sorted(name for name in values if fenced(name))
    if refused:
        it, them = ("this name", "it") if len(refused) == 1 else ("these names", "them")
        warn(
            f"ignored {', '.join(refused)} in {path}: a project's .env may not set {it}; "
            f"export {them} or use the .env of the home folder"
        )
    return {name: value for name, value in values.items() if name not in refused}
