"""Patterns that both engines must read alike, one a line, and lines to try them on."""

from __future__ import annotations

LINES = [
    "foo(bar) baz",
    "Foo_BAR1 = x-y;",
    "",
    "   \t",
    "a.b*c+d?e",
    "[x] {y} \\z | ^$",
    "ä ß É \u0130 \u0131 漢字 \u0661\u0662",
    "foo\rbar\r",
    "x\u00a0y\u2003z\u200b",
    "aaa ab abab aXb",
    "2024-01-02T03:04:05Z",
    "#!/usr/bin/env python",
    "'quoted' \"text\"",
    "tab\tend\t",
    "e\u0301",
]

CORPUS = ("\n".join(LINES) + "\n").encode() + b"bad \xff byte\n\xe9\nend"

PARTS = r"""
* ** a* *.py *.{py,md} ? ?? [ab] [!a] [a-c]* src tests a b.md .* x?y é \[z] [[]z[]] {a,b}*
**a a** *b*
"""
"""Components of drawn globs."""

PIECES = r"""
a b X _ 1 . \w \d \s \W \S [ab] [^ab] [a-z] 漢 é \. [^x] [\w.] ^ $ \b [a-z&&[^b]] (?i:A) -
"""
"""Atoms of drawn patterns."""

PATTERNS = r"""
foo
(?i)foo
(?i:F)oo
f(?i)OO|FOO_
(?-i)foo
^foo
bar$
^$
^\s*$
\s$
\bba
\Bar
\bfoo\b
\w+_\w+
\W\d
\d{4}-\d{2}
[\d-]+T
[^\w\s]{2}
foo\(bar\)
[(\[]
[]x]
[^]x]
[a-c&&b-d]X?b
[a-z--b]b
[a-c~~b-d]X
[[:upper:]]_
[[:^alpha:]]1
[x[yz]]
\p{Lu}
\p{L}\p{N}
\pN
\P{L}{3}
[\p{Ll}]{4}
\x41
\x{6f22}
\u6f22
\U00006f22
漢.
.漢
ä.ß
(?i)É
(?i)ä
a.b
a\.b\*c
a{3}
a{2,}
a{1,2}b
(ab){2}
(?:ab)+$
(?P<n>ab)X|aXb
a+?b
a*?
a**
(a|b)*X
x|
|
()
(|a)b
\t
\r
o\rb
\r$
[\r]
(?x) fo o # comment
(?x: f o ) o
(?s).
(?m)^f
(?U)fo+
\Afoo
end\z
bad . byte
bad .. byte
bad [^x] byte
bad \S
bad \W+ byte
^.$
^[^a]$
^\D$
\s\s\s
[\s\S]y
[\x00-\xff]{3}b
[\x00-\x7f]\t
[^\x00-\x7f]
\$
\^
\|
\{y\}
[{}]
#!/
'q
-y
[+--]d
[a-]b
[-a]b
[\-a]b
[\]]
[\\]
e$
\w$
x{0}foo
""".strip("\n").split("\n")
