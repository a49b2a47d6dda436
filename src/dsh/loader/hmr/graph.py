"""Who imports whom among the watched modules. Python itself keeps no record of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from dsh.base.values import value
from dsh.loader.hmr.imports import imported_names
from dsh.loader.hmr.poll import Signature, differs, look
from dsh.loader.hmr.roots import Roots


class Known(NamedTuple):
    """What is known of a loaded module.

    Attributes:
        signature: Its file, as it was when the module was loaded.
        sure: Whether the file was looked at before it was loaded, not some time after.
        names: What its source imports, and edited ones of it; None until it is read.
    """

    signature: Signature
    sure: bool
    names: frozenset[str] | None


class ImportGraph:
    """Edges from importers to what they import, of loaded modules below the roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._known: dict[str, Known] = {}
        self.recorder = Recorder(roots)

    def modules(self) -> dict[str, str]:
        """Return the loaded modules below the roots, with their files."""
        found = {}
        for name, module in tuple(sys.modules.items()):
            file = _file_of(module)
            if file is not None and self._roots.has_source(file):
                found[name] = file
        return found

    def by_file(self) -> dict[str, list[str]]:
        """Return the loaded modules below the roots by their files, without links."""
        found: dict[str, list[str]] = {}
        for name, file in self.modules().items():
            found.setdefault(self._roots.real(file), []).append(name)
        return found

    def learn(self, modules: Mapping[str, str]) -> None:
        """Look at those of all loaded modules that are not known yet. Reads files."""
        fresh = {
            name: Known(look(file, None), False, None)
            for name, file in modules.items()
            if name not in self._known
        }
        kept = {name: known for name, known in dict(self._known).items() if name in modules}
        self._known = kept | fresh

    def edited(self, modules: Mapping[str, str]) -> set[str]:
        """Return the known ones whose files are other than what was loaded. Reads files."""
        found = set()
        for name, file in modules.items():
            known = self._known.get(name)
            if known is not None and differs(known.signature, look(file, known.signature)):
                found.add(name)
        return found

    def in_use(self, modules: Mapping[str, str]) -> set[str]:
        """Return those whose files are for certain what was loaded from them. Reads files."""
        sure = {
            name: file
            for name, file in modules.items()
            if (known := self._known.get(name)) is not None and known.sure
        }
        return sure.keys() - self.edited(sure)

    def read(self, modules: Mapping[str, str], edited: Container[str] = ()) -> None:
        """Read what modules import, where that is not known, and the edited ones once more.

        Reads files, and takes long for many modules at the first time: call it in a thread.
        """
        for name, file in modules.items():
            known = self._known.get(name)
            if known is not None and (known.names is None or name in edited):
                names = _names_in(file, _package_of(name)).union(known.names or ())
                self._known[name] = known._replace(names=names)

    def renew(self, modules: Mapping[str, str], looks: Mapping[str, Signature]) -> None:
        """Replace what is known of modules that were just loaded anew.

        Args:
            modules: The modules, with their files.
            looks: What the files looked like before.
        """
        for name, file in modules.items():
            self.recorder.seen.pop(name, None)
            self._known[name] = Known(looks[name], True, _names_in(file, _package_of(name)))

    def known(self, names: Iterable[str]) -> dict[str, Known]:
        """Return what is known of modules, so that `put_back` can undo a `renew`."""
        return {name: self._known[name] for name in names if name in self._known}

    def put_back(self, known: Mapping[str, Known]) -> None:
        """Undo a `renew`: what was loaded meanwhile is given up."""
        self._known.update(known)

    def edges(self, modules: Iterable[str]) -> dict[str, set[str]]:
        """Return the direct imports among these modules, as far as they are known."""
        among = set(modules)
        return {name: (self.targets(name) & among) - {name} for name in among}

    def targets(self, name: str) -> set[str]:
        """Return all names that a module may import."""
        known = self._known.get(name)
        own = known.names if known is not None else None
        return {*(own or ()), *self.recorder.seen.get(name, ())}


class Recorder(MetaPathFinder):
    """Notes who imports what first, which also finds names that are computed.

    Attributes:
        seen: Importer -> names.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self.seen: dict[str, set[str]] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Note the importer; finding is left to others."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None:
            return
        importer = frame.f_globals.get("__name__")
        if isinstance(importer, str) and self._roots.has_source(frame.f_code.co_filename):
            self.seen.setdefault(importer, set()).add(fullname)

    def install(self) -> Callable[[], None]:
        """Start to note; returns how to end it."""
        sys.meta_path.insert(0, self)
        return lambda: sys.meta_path.remove(self)


@value
class Plan:
    """What an edit leads to.

    Attributes:
        accepted: Modules to load anew.
        rows: Those of them that are plugins of rows.
        declined: Edited modules that only a new start of the process takes.
        unused: Edited modules that no row's plugin depends on.
    """

    accepted: frozenset[str]
    rows: frozenset[str]
    declined: frozenset[str]
    unused: frozenset[str]


def plan(
    edited: Iterable[str],
    edges: Mapping[str, set[str]],
    rows: Iterable[str],
    externals: frozenset[str],
) -> Plan:
    """Decide which modules are loaded anew.

    Args:
        edited: Loaded modules whose files changed.
        edges: Direct imports.
        rows: Modules that rows name.
        externals: Modules that were loaded before the loader.
    """
    rows = {each for each in rows if each in edges}
    reached = closure(rows, edges)
    outside = {each for each in edges if each in externals}
    # Loaded early, but for the sake of a row alone (a check before the start): that one can go.
    from_outside = closure(outside - reached, edges)
    held = outside & from_outside
    edited = set(edited)
    affected = closure(edited - held, reverse(edges))
    accepted = affected & reached - held
    declined = edited & (held | (from_outside - reached))
    return Plan(
        frozenset(accepted),
        frozenset(rows & accepted),
        frozenset(declined),
        frozenset(edited - accepted - declined),
    )


def closure(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    """Return the start and all that is reached from it."""
    seen = set(start)
    stack = list(seen)
    while stack:
        fresh = edges.get(stack.pop(), set()) - seen
        seen |= fresh
        stack.extend(fresh)
    return seen


def reverse(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Turn edges around."""
    turned: dict[str, set[str]] = {name: set() for name in edges}
    for source, targets in edges.items():
        for target in targets:
            turned.setdefault(target, set()).add(source)
    return turned


def _names_in(file: str, package: str) -> frozenset[str]:
    try:
        return imported_names(Path(file).read_bytes(), package)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # It is not loadable as it is, so that what is loaded is what counts.
        return frozenset()


def _file_of(module: Any) -> str | None:
    if not isinstance(module, ModuleType):
        return None
    file = module.__dict__.get("__file__")
    return file if isinstance(file, str) else None


def _package_of(name: str) -> str:
    module = sys.modules.get(name)
    package = getattr(module, "__package__", None)
    return package if isinstance(package, str) else name.rpartition(".")[0]
