"""The command line ``dsh plugin``."""

from __future__ import annotations

from pathlib import Path

from dsh.base.errors import DshError, message_of
from dsh.base.text import nearest, replace_surrogates
from dsh.loader.home import resolve_dsh_home
from dsh.loader.say import say, write
from dsh.product.plugins.errors import PipFailed, PluginError, WordsError
from dsh.product.plugins.words import Words, read_words


def main(profile: str, args: list[str]) -> int:
    """Run ``dsh plugin``.

    Args:
        profile: Value of ``--profile``; empty when there was none.
        args: What follows it.

    Returns:
        The exit code; pip's own when pip failed.
    """
    try:
        words = read_words(args)
        if words.help:
            from dsh.product.plugins.help import verb_help

            print(verb_help(words.verb), end="")
            return 0
        lines = _run(profile, words)
    except PipFailed as error:
        say(str(error))
        return error.exit_code
    except DshError as error:
        write(f"dsh plugin: {_one_line(message_of(error))}")
        return error.exit_code if isinstance(error, PluginError) else 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        reason = (error.strerror or str(error)).lower()
        write(f"dsh plugin: {_one_line(f'{place}{reason}')}; nothing was changed")
        return 1
    for line in lines:
        print(replace_surrogates(line))
    return 0


def _run(profile: str, words: Words) -> list[str]:
    if words.verb == "new":
        from dsh.product.plugins.new import write_package

        return write_package(words.names[0], words.folder, Path.cwd())
    if not profile:
        raise WordsError("--profile <name> is required before the verb")
    from dsh.product.plugins.change import Place, change

    place = Place(profile, resolve_dsh_home())
    if words.verb == "list":
        return _list(place.name, place.home, words)
    return change(place, words, Path.cwd())


def _list(profile: str, home: Path, words: Words) -> list[str]:
    from dsh.loader.errors import ProfileMissing
    from dsh.loader.profile import list_profiles, manifest_path, read_profile
    from dsh.product.plugins.listing import list_plugins, table
    from dsh.product.plugins.manifest import open_manifest

    found = read_profile(profile, home)
    if found is None:
        known = list_profiles(home)
        raise ProfileMissing(profile, known=known, near=nearest(profile, known))
    saved = manifest_path(found.folder) is not None
    manifest = open_manifest(found.folder) if saved else None
    rows = list_plugins(manifest, profile)
    if not words.json:
        return table(rows)
    from dsh.base.json import dumps_str

    return [dumps_str(rows)]


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in flat)
