"""The document of credentials: what it may hold, how it changes, what errors say."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.state.credentials.document import CredentialsDocument, Stored, check_value
from dsh.state.credentials.service import (
    ApiKeyRecord,
    Grant,
    InvalidCredentialName,
    InvalidCredentialValue,
)
from dsh.state.documents import DocumentError, OpenToOthers

SECRET = "sk-hidden-0123"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".credentials.yaml"


def write(path: Path, text: str) -> CredentialsDocument:
    path.write_text(text)
    path.chmod(0o600)
    return CredentialsDocument(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "version: 1\n", "version: 1\nrefs:\n"])
def test_a_document_may_be_empty(path: Path, text: str) -> None:
    assert write(path, text).load() == Stored()


def test_no_document_is_an_empty_one(path: Path) -> None:
    assert CredentialsDocument(path).load() == Stored()


FULL = f"""\
version: 1
refs:
  A_KEY: {SECRET}
records:
  web-search/main:
    kind: api-key
    key: {SECRET}
    env: {{REGION: eu}}
  ambient/it: {{kind: api-key}}
  mcp/server-1:
    kind: grant
    payload: {{token: {SECRET}, expires: 5}}
"""


def test_references_and_records_are_read(path: Path) -> None:
    stored = write(path, FULL).load()
    assert stored.refs == {"A_KEY": SECRET}
    assert stored.record("web-search/main") == ApiKeyRecord(SECRET, {"REGION": "eu"})
    assert stored.record("ambient/it") == ApiKeyRecord()
    assert stored.record("mcp/server-1") == Grant({"token": SECRET, "expires": 5})
    assert stored.record("mcp/other") is None


def test_nothing_that_is_read_shows_a_secret_when_it_is_printed(path: Path) -> None:
    stored = write(path, FULL).load()
    records = [stored.record(key) for key in stored.records]
    assert SECRET not in repr(stored) + str(stored) + repr(records)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"version: 2\nrefs: {{A: {SECRET}}}\n", "version: 1"),
        (f"refs: {{A: {SECRET}}}\n", "version: 1"),
        (f"version: '1'\nrefs: {{A: {SECRET}}}\n", "version: 1"),
        (f"version: 1\nextra: {SECRET}\n", "unknown"),
        (f"version: 1\nrefs: {SECRET}\n", "refs must be a mapping"),
        (f"version: 1\nrefs: {{'{SECRET} x': y}}\n", "no name"),
        ("version: 1\nrefs: {A: 5}\n", r"refs\.A must be a text"),
        ("version: 1\nrefs: {A: ''}\n", r"refs\.A is empty"),
        (f"version: 1\nrefs: {{A: x}}\nrefs: {{A: {SECRET}}}\n", r":3:1 .*duplicate key"),
        (f"version: 1\nrecords: {{main: {{kind: {SECRET}}}}}\n", "no name"),
        (f"version: 1\nrecords: {{a/b: {{kind: {SECRET}}}}}\n", "kind api-key or grant"),
        (f"version: 1\nrecords: {{a/b: {SECRET}}}\n", r"records\.a/b must be a mapping"),
        (f"version: 1\nrecords: {{a/b: {{kind: grant, x: {SECRET}}}}}\n", "no payload"),
        (f"version: 1\nrecords: {{a/b: {{kind: api-key, x: {SECRET}}}}}\n", "fields besides"),
        (
            f"version: 1\nrecords: {{a/b: {{kind: api-key, key: [{SECRET}]}}}}\n",
            r"a/b\.key must be",
        ),
        (f"version: 1\nrecords: {{a/b: {{kind: api-key, env: {{A: [{SECRET}]}}}}}}\n", r"env\.A"),
        (f"version: 1\nrefs:\n  A: '{SECRET}\n", ":4:1"),
        (f"- {SECRET}\n", "must be a mapping"),
        (f"A: {SECRET}\nnested: {{b: c}}\n", "'version: 1' in its first line"),
        (f"a-b: {SECRET}\n", "'version: 1' in its first line"),
        ("A: ''\n", "'version: 1' in its first line"),
    ],
)
def test_anything_else_is_refused_and_not_quoted(path: Path, text: str, problem: str) -> None:
    document = write(path, text)
    with pytest.raises(DocumentError, match=problem) as caught:
        document.load()
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert path.read_text() == text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_document_that_others_may_open_is_not_parsed(path: Path, mode: int) -> None:
    document = write(path, "[broken")
    path.chmod(mode)
    with pytest.raises(OpenToOthers, match=f"chmod 600 {path}"):
        document.load()
    with pytest.raises(OpenToOthers), document.draft():
        pytest.fail("it was entered")


def test_a_list_of_before_version_1_is_indented_and_otherwise_kept(path: Path) -> None:
    old = f"# mine\nA_KEY: {SECRET} # a\n\nB: 'x y'\n# end\n"
    document = write(path, old)
    assert document.peek().refs == {"A_KEY": SECRET, "B": "x y"}
    assert path.read_text() == old
    assert document.load().refs == {"A_KEY": SECRET, "B": "x y"}
    indented = f"  # mine\n  A_KEY: {SECRET} # a\n\n  B: 'x y'\n  # end\n"
    assert path.read_text() == f"version: 1\nrefs:\n{indented}"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_live_reading_does_not_take_such_a_list(path: Path) -> None:
    document = write(path, f"A: {SECRET}\n")
    with pytest.raises(DocumentError):
        document.read()


def test_writes_keep_comments_and_remove_those_of_what_they_remove(path: Path) -> None:
    document = write(
        path, "# keys\nversion: 1\nrefs:\n  # first\n  A: a # x\n  # second\n  B: b\n\n# end\n"
    )
    with document.draft() as draft:
        draft.set_ref("C", "c")
        draft.unset_ref("A")
    assert path.read_text() == ("# keys\nversion: 1\nrefs:\n  # second\n  B: b\n  C: c\n\n# end\n")


def test_the_last_reference_goes_and_the_document_stays_readable(path: Path) -> None:
    document = write(path, "version: 1\nrefs:\n  A: a\n")
    with document.draft() as draft:
        draft.unset_ref("A")
    assert path.read_text() == "version: 1\nrefs: {}\n"
    assert document.load() == Stored()


def test_unsetting_what_is_not_there_makes_no_document(path: Path) -> None:
    with CredentialsDocument(path).draft() as draft:
        draft.unset_ref("A")
        draft.put_record("a/b", None)
    assert not path.exists()


def test_records_are_written_and_read_back(path: Path) -> None:
    document = CredentialsDocument(path)
    with document.draft() as draft:
        draft.put_record("a/b", ApiKeyRecord("k", {"X": "y"}))
        draft.put_record("a/c", Grant({"list": [1, None, {"deep": True}]}))
        draft.put_record("a/d", ApiKeyRecord())
        draft.put_record("a/d", None)
    stored = document.load()
    assert stored.record("a/b") == ApiKeyRecord("k", {"X": "y"})
    assert stored.record("a/c") == Grant({"list": [1, None, {"deep": True}]})
    assert list(stored.records) == ["a/b", "a/c"]


@pytest.mark.parametrize(
    "record",
    [
        Grant(float("nan")),  # type: ignore[arg-type]
        Grant({"a": object()}),  # type: ignore[dict-item]
        ApiKeyRecord(""),
        ApiKeyRecord("k", {"not a name": "x"}),
        ApiKeyRecord("k", {"A": SECRET, "B": ""}),
    ],
)
def test_records_that_could_not_be_read_back_are_refused(
    path: Path, record: ApiKeyRecord | Grant
) -> None:
    with (
        CredentialsDocument(path).draft() as draft,
        pytest.raises(InvalidCredentialValue, match="'a/b' cannot be stored") as caught,
    ):
        draft.put_record("a/b", record)
    assert SECRET not in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("key", ["", "a", "a/", "/b", "A/b", "a/b/c", "a/1", "a b/c"])
def test_keys_of_records_have_an_owner_and_an_id(path: Path, key: str) -> None:
    with CredentialsDocument(path).draft() as draft, pytest.raises(InvalidCredentialName):
        draft.put_record(key, None)


@pytest.mark.parametrize("ref", ["", "1A", "A-B", "A.B", "ä", "A B", "A\n"])
def test_references_are_names_of_variables(path: Path, ref: str) -> None:
    with CredentialsDocument(path).draft() as draft, pytest.raises(InvalidCredentialName):
        draft.set_ref(ref, "x")


@pytest.mark.parametrize("value", ["", "  ", f"{SECRET}\n", f"{SECRET}\0", f"\t{SECRET}", 5])
def test_values_are_one_line_of_text(value: str) -> None:
    with pytest.raises(InvalidCredentialValue) as caught:
        check_value(value)
    assert SECRET not in str(caught.value)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("ABC"), st.text(min_size=1).filter(str.isprintable)))
def test_any_line_of_text_reads_back(
    tmp_path_factory: pytest.TempPathFactory, refs: dict[str, str]
) -> None:
    document = CredentialsDocument(tmp_path_factory.mktemp("home") / ".credentials.yaml")
    wanted = {name: item for name, item in refs.items() if item.strip()}
    with document.draft() as draft:
        for name, item in wanted.items():
            draft.set_ref(name, item)
    assert document.load().refs == wanted


WRITER = """
import sys
from pathlib import Path
from dsh.state.credentials.document import CredentialsDocument
for number in range(20):
    with CredentialsDocument(Path(sys.argv[1])).draft() as draft:
        draft.set_ref(sys.argv[2], f"value-{number}")
"""


def test_two_processes_that_write_different_names_keep_both(path: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("A", "B")
    ]
    assert [child.wait() for child in children] == [0, 0]
    assert CredentialsDocument(path).load().refs == {"A": "value-19", "B": "value-19"}


def test_a_write_over_a_document_that_became_invalid_fails_and_leaves_it(path: Path) -> None:
    document = write(path, "version: 1\nrefs: {A: 5}\n")
    with pytest.raises(DocumentError), document.draft():
        pytest.fail("it was entered")
    assert path.read_text() == "version: 1\nrefs: {A: 5}\n"
