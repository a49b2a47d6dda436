"""Hide secrets in texts that quote errors, configs or files.

A value is a secret when the name beside it says so: of a variable, or of a key in any of the user's
files, whether or not these parse. What has the shape of a key is one without a name, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsh.loader.profile import PATCH_FILE
from dsh.loader.reading import read_bounded

if TYPE_CHECKING:
    from dsh.loader.environment import LaunchEnvironment

_SHORTEST: Final = 6
_MOST_BYTES: Final = 1 << 20
_NAME: Final = re.compile(
    r"(key|token|secret|passw|pwd|credential|authoriz|bearer|cookie|private)", re.IGNORECASE
)
_KEY: Final = re.compile(r"""["']?([\w.-]{1,200})["']?[ \t]*[:=][ \t]*(?=\S)""")
_QUOTED: Final = re.compile(r""""((?:\\.|[^"\\\n])+)"|'([^'\n]+)'""")
_REST: Final = re.compile(r"[^\n#]+")
_TOKEN: Final = re.compile(r"""[^\s#,{}\[\]"']+""")
_SHAPES: Final = (
    (re.compile(r"\b(?:sk|pk|ghp|gho|xox[abp])[-_][\w-]{6,}"), "<key>"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 <key>"),
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+@"), "<credentials>@"),
)


class Redactor:
    """Replaces each secret that is known by the name it goes under."""

    def __init__(self, named: Iterable[tuple[str, str]]) -> None:
        found: dict[str, str] = {}
        for name, value in named:
            for spelling in _spellings(value.strip()):
                if len(spelling) >= _SHORTEST:
                    found.setdefault(spelling, f"<{name}>")
        # Longest first: a secret that another one begins with must not leave its rest behind.
        self._found = sorted(found.items(), key=lambda pair: -len(pair[0]))

    def __call__(self, text: str) -> str:
        """Return the text without the secrets."""
        for value, shown in self._found:
            if value in text:
                text = text.replace(value, shown)
        for shape, shown in _SHAPES:
            text = shape.sub(shown, text)
        return text

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._found)} secrets>"


def redactor(
    home: Path,
    environment: LaunchEnvironment,
    *,
    profiles: Iterable[Path] = (),
    files: Iterable[Path] = (),
    rows: Iterable[Mapping[str, Any]] = (),
) -> Redactor:
    """Return what hides the secrets of one run.

    Args:
        home: Its files of settings, credentials and patches are read.
        environment: Its variables, those of both ``.env`` files among them.
        profiles: Folders of profiles, whose files are read too.
        files: More files to read, such as patches; those that cannot be read are passed over.
        rows: Composed rows; values in their configs are looked at.
    """
    named: list[tuple[str, str]] = []
    for source in ("process", "project-env", "user-env"):
        named += secret_pairs(environment.layer(source))
    own = [home / name for name in (".env", "settings.yaml", PATCH_FILE)]
    for folder in profiles:
        own += [folder / PATCH_FILE, folder / "profile.json", folder / "package.json"]
    for path in (*own, *files):
        named += secrets_of_text(_text(path))
    # Everything in there is a secret, whatever it is called.
    named += [("credential", value) for _, value in _pairs(_text(home / ".credentials.yaml"))]
    named += secret_pairs(list(rows))
    return Redactor(named)


def secret_pairs(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of each text in a structure that goes under a secret's name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            inside = name if name and not isinstance(item, str) else ""
            yield from secret_pairs(item, str(key) if _NAME.search(str(key)) else inside)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secret_pairs(item, name)
    elif isinstance(value, str) and name:
        yield name, value


def secrets_of_text(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each pair in a text, of any format, that a secret's name is in."""
    return ((name, value) for name, value in _pairs(text) if _NAME.search(name))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield each name in a text that a value follows, with all that this value may be."""
    for match in _KEY.finditer(text):
        if (quoted := _QUOTED.match(text, match.end())) is not None:
            yield match[1], quoted[1] or quoted[2]
            continue
        # In a flow mapping a value ends sooner than in a block, where it may hold spaces.
        for pattern in (_REST, _TOKEN):
            if (value := pattern.match(text, match.end())) is not None:
                yield match[1], value[0].strip()


def _spellings(value: str) -> set[str]:
    """Return how a value looks in a text: as it is, and as a literal of Python or JSON."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1]}


def _text(path: Path) -> str:
    try:
        return read_bounded(path, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
