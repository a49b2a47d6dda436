"""What an installed package does to a profile that starts: it adds to it, or is left out whole."""

from __future__ import annotations

import pytest
from plugin_support import PLUGIN, User, bundle_wheel, unpack

BROKEN = "x = 1\ndef apply(ctx:\n"


def install(user: User, name: str, **options: str) -> None:
    """Put a package in the site as an older dsh might have left it."""
    file = bundle_wheel(user.wheels, name, **options)
    unpack(user.site, file)


def test_a_plugin_with_a_syntax_error_leaves_its_row_out_with_file_and_line(user: User) -> None:
    user.made(dsh={"profile": {"bundles": ["acme-good", "acme-bad"]}})
    bundle_wheel(user.wheels, "acme-good", source=PLUGIN)
    bundle_wheel(user.wheels, "acme-bad", source=BROKEN)
    user.done("add", "acme-good", "acme-bad")
    done = user.run("--profile", "p")
    assert (done.returncode, done.stdout) == (0, "up\n")
    (line,) = done.stderr.splitlines()
    assert 'row "acme-bad" (acme_bad)' in line
    assert "line 2" in line
    assert "__init__.py" in line
    strict = user.run("--profile", "p", "--strict")
    assert strict.returncode == 1
    assert strict.stdout == ""


def test_a_row_of_a_package_for_another_api_is_left_out_unimported(user: User) -> None:
    user.made(dsh={"profile": {"bundles": ["acme-rows"]}})
    rows = "- insert: [{id: good, name: acme_good}, {id: late, name: acme_late.inner}]\n"
    install(user, "acme-rows", rows=rows)
    install(user, "acme-good", source=PLUGIN)
    install(user, "acme-late", source="raise RuntimeError('imported')", api='dsh-api = ">=2"\n')
    done = user.run("--profile", "p")
    assert (done.returncode, done.stdout) == (0, "up\n")
    (line,) = done.stderr.splitlines()
    assert 'package "acme_late" was made for dsh API >=2, and this dsh has 1.0' in line
    assert "imported" not in line


def test_an_entry_point_of_a_package_for_another_api_is_left_out_too(user: User) -> None:
    user.made(dsh={"profile": {"bundles": ["acme-rows"]}})
    rows = "- insert: [{id: good, name: acme_good}, {id: late, name: acme-late}]\n"
    install(user, "acme-rows", rows=rows)
    install(user, "acme-good", source=PLUGIN)
    install(user, "acme-late", source="raise RuntimeError('imported')", api='dsh-api = ">=2"\n')
    done = user.run("--profile", "p")
    assert (done.returncode, done.stdout) == (0, "up\n")
    assert "was made for dsh API >=2" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"api": 'dsh-api = ">=2"\n'}, 'profile bundle "acme-a": package "acme_a" was made for'),
        ({"api": "dsh-api = 1\n"}, "dsh-api must be a text, got 1"),
        ({"rows": "- {"}, "failed to parse bundle"),
        ({"rows": ""}, "failed to read bundle"),
        ({"value": "acme_a:../../x.yml"}, "leads out of its package"),
    ],
)
def test_a_bundle_that_cannot_be_used_starts_nothing(
    user: User, options: dict[str, str], problem: str
) -> None:
    user.made(dsh={"profile": {"bundles": ["acme-good", "acme-a"]}})
    install(user, "acme-good", source=PLUGIN)
    install(user, "acme-a", source="raise RuntimeError('imported')", **options)
    for words in ((), ("--dump-config",)):
        done = user.run("--profile", "p", *words)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert problem in line
