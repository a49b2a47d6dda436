"""Fresh copies of modules in place of those that are loaded, until they are kept or undone."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dsh.loader.hmr.roots import Roots


class ModuleSwap:
    """One replacement of modules; `begin` it, load, then drop this object or `restore`."""

    def __init__(self, modules: Mapping[str, str], roots: Roots) -> None:
        """Take modules by name, with their files."""
        self._files = dict(modules)
        self._roots = roots
        self._old: dict[str, ModuleType] = {}
        self._attributes: list[tuple[ModuleType, str, Any]] = []
        self._lines: dict[str, Any] = {}
        self._before: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Take the old modules away; the next import of one loads it anew."""
        self._before = frozenset(sys.modules)
        for name, file in self._files.items():
            self._old[name] = sys.modules.pop(name)
            # Compiled code counts as current by size and second; an edit can leave both alone.
            _drop_compiled(file)
            if file in linecache.cache:
                self._lines[file] = linecache.cache.pop(file)
        for name in self._files:
            self._detach(name)
        importlib.invalidate_caches()

    def load(self, names: Iterable[str]) -> None:
        """Import modules from the text that their files hold now.

        Raises:
            BaseException: what a module raised; `restore` is up to the caller.
        """
        finder = _FreshFinder(self._files, self._roots)
        sys.meta_path.insert(0, finder)
        try:
            for name in names:
                importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)

    def restore(self) -> None:
        """Put everything back, and forget what was loaded since."""
        for name in [each for each in sys.modules if each not in self._before or each in self._old]:
            file = getattr(sys.modules[name], "__file__", None)
            if name in self._old or (isinstance(file, str) and self._roots.has_source(file)):
                del sys.modules[name]
                self._detach(name, remember=False)
        sys.modules.update(self._old)
        for parent, leaf, value in self._attributes:
            setattr(parent, leaf, value)
        for file in self._files.values():
            linecache.cache.pop(file, None)
        linecache.cache.update(self._lines)

    def _detach(self, name: str, *, remember: bool = True) -> None:
        """Take a module out of its package, where ``from package import it`` would find it."""
        above, _, leaf = name.rpartition(".")
        parent = sys.modules.get(above) if above else None
        if parent is None or not isinstance(value := vars(parent).get(leaf), ModuleType):
            return
        if remember:
            self._attributes.append((parent, leaf, value))
        with suppress(AttributeError):
            delattr(parent, leaf)


class _FreshFinder(MetaPathFinder):
    """Finds as the others do, but has sources of the user's compiled from their text."""

    def __init__(self, files: Mapping[str, str], roots: Roots) -> None:
        self._files = files
        self._roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self._found(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if spec.origin is not None and self._roots.has_source(spec.origin):
            spec.loader = _FreshLoader(fullname, spec.origin)
        return spec

    def _found(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        # What a row named as a file is on no path.
        file = self._files.get(fullname) if path is None else None
        return importlib.util.spec_from_file_location(fullname, file) if file else None


class _FreshLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        try:
            code: CodeType = self.source_to_code(data, path)
        except SyntaxError as error:
            if error.filename is None:
                # Of a NUL the compiler does not say where it is.
                error.filename, error.lineno = path, data.count(b"\n", 0, data.find(b"\0")) + 1
            raise
        except (MemoryError, RecursionError) as error:
            raise SyntaxError("nested too deeply to compile", (path, 1, None, None)) from error
        return code

    def exec_module(self, module: ModuleType) -> None:
        # Submodules that stay loaded belong to the new package object from now on.
        prefix = f"{module.__name__}."
        for name, each in tuple(sys.modules.items()):
            if name.startswith(prefix) and "." not in (leaf := name[len(prefix) :]):
                setattr(module, leaf, each)
        super().exec_module(module)


def _drop_compiled(file: str) -> None:
    with suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
