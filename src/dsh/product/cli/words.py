"""Read the words of a command as the table describes them, and print the table as its help."""

from __future__ import annotations

from dsh.product.cli.table import COMMANDS, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class WordsError(Exception):
    """The words make no sense; the message says what to write instead."""


class Words:
    """What was written after a command.

    Attributes:
        verb: The verb; empty when the command has none.
        args: Words that are no options, without the verb.
    """

    __slots__ = ("_given", "args", "verb")

    def __init__(self) -> None:
        self.verb = ""
        self.args: list[str] = []
        self._given: dict[str, list[str]] = {}

    def flag(self, option: str) -> bool:
        """Return whether an option without a value was given."""
        return option in self._given

    def value(self, option: str) -> str | None:
        """Return the value of an option; the last one counts."""
        return self._given.get(option, [None])[-1]

    def values(self, option: str) -> list[str]:
        """Return all values of an option, in order."""
        return list(self._given.get(option, ()))

    def take(self, option: Option, value: str = "") -> None:
        """Note an option, under its long name."""
        self._given.setdefault(option.names[-1], []).append(value)


def read_words(name: str, argv: Sequence[str]) -> Words | None:
    """Return what follows a command; None when its help is asked for.

    Args:
        name: The command.
        argv: The words after it.

    Raises:
        WordsError: a word or option is none of the command's, or a value is missing.
    """
    command, words = COMMANDS[name], Words()
    options = _by_name(command.options)
    rest = list(argv)
    if any(word in {"-h", "--help"} for word in _before_separator(rest)):
        return None
    while rest:
        word = rest.pop(0)
        if word == "--":
            words.args += rest
            break
        if word.startswith("-") and word != "-":
            _take(options, word, rest, words)
        elif command.verbs and not words.verb:
            if word not in command.verbs:
                raise WordsError(f"unexpected {word!r}{_near(word, [*command.verbs])}")
            words.verb = word
            options |= _by_name(command.verbs[word].options)
        else:
            words.args.append(word)
    return words


def command_help(name: str) -> str:
    """Return the text of ``dsh <name> --help``."""
    command = COMMANDS[name]
    lines = [f"usage: dsh {name} {command.usage}", "", *command.about.splitlines(), "", "options:"]
    options = [*command.options]
    for verb in command.verbs.values():
        options[-1:-1] = [each for each in verb.options if each not in options]
    heads = [", ".join(each.names) + (f" {each.value}" if each.value else "") for each in options]
    width = max(map(len, heads)) + 2
    lines += [f"  {head:<{width}}{each.text}" for head, each in zip(heads, options, strict=True)]
    return "\n".join(lines) + "\n"


def _before_separator(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _by_name(options: Sequence[Option]) -> dict[str, Option]:
    return {name: option for option in options for name in option.names}


def _take(options: dict[str, Option], word: str, rest: list[str], words: Words) -> None:
    name, equals, value = word.partition("=")
    option = options.get(name)
    if option is None:
        raise WordsError(f"unknown option {name!r}{_near(name, [*options])}")
    if not option.value:
        if equals:
            raise WordsError(f"{name} takes no value")
        words.take(option)
        return
    if not equals:
        if not rest or rest[0] in options:
            raise WordsError(f"{name} {option.value} needs a value")
        value = rest.pop(0)
    if not value.strip():
        raise WordsError(f"{name} {option.value} needs a value that is not empty")
    choices = option.kind.split("|")
    if len(choices) > 1 and value not in choices:
        raise WordsError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if not option.many and words.flag(option.names[-1]):
        raise WordsError(f"{name} is given twice")
    words.take(option, value)


def _near(word: str, known: list[str]) -> str:
    from dsh.base.text import nearest

    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else f"; possible are: {', '.join(known)}"


def options_of(command: Command) -> Iterator[Option]:
    """Yield the options of a command and of its verbs."""
    yield from command.options
    for verb in command.verbs.values():
        yield from verb.options
