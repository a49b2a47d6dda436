"""The document of stored credentials: what it may hold, and how it is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from dsh.base.json import FrozenDict, NotLossless, equal, snapshot
from dsh.base.values import value
from dsh.state.credentials.service import (
    ApiKeyRecord,
    CredentialRecord,
    Grant,
    InvalidCredentialName,
    InvalidCredentialValue,
    check_record_key,
    check_reference,
)
from dsh.state.documents import DocumentError, DocumentFile, Draft

__all__ = ["FILE_NAME", "CredentialDraft", "CredentialsDocument", "Stored"]

FILE_NAME: Final = ".credentials.yaml"
_VERSION: Final = 1
_LOCK_S: Final = 30.0
_WHAT: Final = "credentials document"
_NOTHING: Final[Mapping[str, Any]] = FrozenDict()


@value
class Stored:
    """All that a document holds, checked; printing it shows nothing."""

    refs: Mapping[str, str] = _NOTHING
    records: Mapping[str, Any] = _NOTHING
    """Records as they are written."""

    def __repr__(self) -> str:
        return f"Stored({len(self.refs)} refs, {len(self.records)} records)"

    def record(self, key: str) -> CredentialRecord | None:
        """Return a record."""
        found = self.records.get(key)
        if found is None:
            return None
        if found["kind"] == "grant":
            return Grant(found["payload"])
        return ApiKeyRecord(found.get("key"), found.get("env"))


class CredentialsDocument:
    """The file ``.credentials.yaml``, which only its owner may open.

    All methods block, and raise `DocumentError` for a document that cannot be used; the text
    names keys and places, never values.
    """

    def __init__(self, path: Path) -> None:
        self._file = DocumentFile(path, what=_WHAT, lock_s=_LOCK_S, secret=True)
        self.path = path

    def read(self) -> Stored:
        """Return what is stored."""
        return _checked(self._file.read(), self.path)

    def peek(self) -> Stored:
        """Return what `load` would, and write nothing."""
        data = self._file.read()
        return _flat(data, self.path) if _is_flat(data) else _checked(data, self.path)

    def load(self) -> Stored:
        """Return what is stored, after bringing a document of before version 1 to version 1."""
        data = self._file.read()
        if not _is_flat(data):
            return _checked(data, self.path)
        with self._file.draft() as draft:
            if _is_flat(draft.data):
                _migrate(self._file, draft, self.path)
            return _checked(draft.data, self.path)

    def stamp(self) -> object:
        """Return what changes whenever the file does."""
        return self._file.stamp()

    @contextmanager
    def draft(self) -> Iterator[CredentialDraft]:
        """Keep other writers out, and read the document anew."""
        with self._file.draft() as draft:
            yield CredentialDraft(draft, _checked(draft.data, self.path))


class CredentialDraft:
    """The document while nobody else may write it.

    Attributes:
        stored: What it holds now.
    """

    __slots__ = ("_draft", "stored")

    def __init__(self, draft: Draft, stored: Stored) -> None:
        self._draft = draft
        self.stored = stored

    def set_ref(self, ref: str, given: str) -> Stored:
        """Store a value.

        Raises:
            InvalidCredentialValue: it is empty, or not one line of text.
        """
        check_reference(ref)
        check_value(given)
        return self._write({**self.stored.refs, ref: given}, self.stored.records)

    def unset_ref(self, ref: str) -> Stored:
        """Take a value out."""
        refs = {name: item for name, item in self.stored.refs.items() if name != ref}
        return self._write(refs, self.stored.records)

    def put_record(self, key: str, record: CredentialRecord | None) -> Stored:
        """Store a record; None takes it out.

        Raises:
            InvalidCredentialValue: it cannot be stored.
        """
        check_record_key(key)
        records = {name: item for name, item in self.stored.records.items() if name != key}
        if record is not None:
            records[key] = _written(record, key)
        return self._write(self.stored.refs, records)

    def _write(self, refs: Mapping[str, str], records: Mapping[str, Any]) -> Stored:
        data: dict[str, Any] = {"version": _VERSION}
        before = self._draft.data
        if refs or "refs" in before:
            data["refs"] = dict(refs)
        if records or "records" in before:
            data["records"] = dict(records)
        taken = snapshot(data)
        # A section that is written as nothing, and holds nothing, stays as it is.
        if not equal(_filled(before), _filled(taken)):
            self._draft.write(taken)
        self.stored = Stored(taken.get("refs", _NOTHING), taken.get("records", _NOTHING))
        return self.stored


def check_value(given: str) -> None:
    """Refuse what cannot be a secret on one line.

    Raises:
        InvalidCredentialValue: says why, without the value.
    """
    problem = None
    if not isinstance(given, str):
        problem = "is no text"
    elif not given.strip():
        problem = "is empty; to take a credential out, unset it"
    elif not given.isprintable():
        problem = "has a line break or another character that does not print"
    if problem is not None:
        raise InvalidCredentialValue(f"the value {problem}")


def _checked(data: Mapping[str, Any], path: Path) -> Stored:
    if not data:
        return Stored()
    check = _Check(path)
    if unknown := [key for key in data if key not in ("version", "refs", "records")]:
        check.refuse(
            f"{len(unknown)} of its keys are unknown; it has version, refs and records alone"
        )
    version = data.get("version")
    if type(version) is not int or version != _VERSION:
        check.refuse(f"it must say version: {_VERSION}")
    refs = check.section(data, "refs")
    for name, item in refs.items():
        check.name(check_reference, name, "refs")
        check.text(item, f"refs.{name}")
    records = check.section(data, "records")
    for key, record in records.items():
        check.name(check_record_key, key, "records")
        check.record(record, f"records.{key}")
    return Stored(refs, records)


class _Check:
    """Refuses what a document may not hold; names keys, never values."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def refuse(self, problem: str) -> NoReturn:
        raise DocumentError(self._path, problem, what=_WHAT)

    def section(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        section = data.get(key)
        if section is None:
            return _NOTHING
        if not isinstance(section, dict):
            self.refuse(f"{key} must be a mapping")
        taken: Mapping[str, Any] = section
        return taken

    def name(self, check: Callable[[str], None], name: str, where: str) -> None:
        problem = ""
        try:
            check(name)
        except InvalidCredentialName as error:
            problem = error.message
        if problem:
            self.refuse(f"{where} has a key that is no name: {problem}")

    def text(self, item: object, where: str) -> None:
        if not isinstance(item, str):
            self.refuse(f"{where} must be a text; quote it")
        elif not item:
            self.refuse(f"{where} is empty; take the line out")

    def record(self, record: Any, where: str) -> None:
        if not isinstance(record, dict):
            self.refuse(f"{where} must be a mapping")
        kind = record.get("kind")
        if kind == "grant":
            allowed = {"kind", "payload"}
            if "payload" not in record:
                self.refuse(f"{where} has no payload")
        elif kind == "api-key":
            allowed = {"kind", "key", "env"}
            if "key" in record:
                self.text(record["key"], f"{where}.key")
            self.variables(record.get("env", _NOTHING), f"{where}.env")
        else:
            self.refuse(f"{where} must have the kind api-key or grant")
        if not set(record) <= allowed:
            self.refuse(f"{where} has fields besides {', '.join(sorted(allowed))}")

    def variables(self, env: Any, where: str) -> None:
        if not isinstance(env, dict):
            self.refuse(f"{where} must be a mapping")
        for name, item in env.items():
            self.name(check_reference, name, where)
            self.text(item, f"{where}.{name}")


def _written(record: CredentialRecord, key: str) -> Any:
    out: dict[str, Any] = {"kind": record.kind}
    if isinstance(record, Grant):
        out["payload"] = record.payload
    else:
        out |= {} if record.key is None else {"key": record.key}
        out |= {} if record.env is None else {"env": dict(record.env)}
    problem = ""
    try:
        taken = snapshot(out)
        _Check(Path(key)).record(taken, "it")
    except NotLossless as error:
        problem = f"the value at {error.path} is not JSON"
    except DocumentError as error:
        problem = error.problem
    if problem:
        raise InvalidCredentialValue(f"the record {key!r} cannot be stored: {problem}")
    return taken


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": _VERSION} | {key: item for key, item in data.items() if item}


def _is_flat(data: Mapping[str, Any]) -> bool:
    """Whether a document has the shape of before version 1: names to texts, nothing else."""
    return bool(data) and not {"version", "refs", "records"} & set(data)


def _flat(data: Mapping[str, Any], path: Path) -> Stored:
    fits = all(isinstance(item, str) and item for item in data.values())
    try:
        for name in data:
            check_reference(name)
    except InvalidCredentialName:
        fits = False
    if not fits:
        raise DocumentError(
            path,
            "it is neither of version 1 nor a plain list of names and texts; write "
            "'version: 1' in its first line and put the names, indented, under 'refs:'",
            what=_WHAT,
        )
    return Stored(data)


def _migrate(file: DocumentFile, draft: Draft, path: Path) -> None:
    """Put the lines of an old document, as they are, under ``refs``."""
    _flat(draft.data, path)
    lines = draft.text.splitlines(keepends=True)
    indented = "".join("  " + line if line.strip() else line for line in lines)
    text = f"version: {_VERSION}\nrefs:\n{indented}"
    data = snapshot({"version": _VERSION, "refs": dict(draft.data)})
    same = False
    try:
        same = equal(file.parse(text), data)
    except DocumentError:
        same = False
    if same:
        draft.write_text(text, data)
    else:
        draft.write(data)
