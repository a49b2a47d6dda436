r"""A stand-in for the ripgrep invocations that dsh makes, for machines without it.

It runs as a program of its own, so that a pattern that takes for ever can be killed, and it takes
the same options and writes the same output. It needs nothing but the standard library and is
started without site packages, so its modules import each other relatively and nothing else.

Where it differs from ripgrep:

- Word boundaries are those of Python: combining marks are no word characters to them.
- ``\p{...}`` knows general categories, ``Alphabetic``, ``Lowercase``, ``Uppercase`` and
  ``Any``; scripts are refused.
- The flags ``u`` and ``R`` cannot be switched off and on.
- Patterns with nested repetition can take exponential time; the caller's deadline ends them.
- Escapes and braces that some versions of ripgrep refuse and others take are taken.
"""
