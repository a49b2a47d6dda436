"""Any order of writes and edits leaves what a plain dictionary would hold."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import Field
from settings_harness import Frozen, Tree

from dsh.base.json import thaw
from dsh.kernel import Context
from dsh.loader.yaml import load_yaml
from dsh.state.settings import SettingsConflict, SettingsRefused

BASE = {"size": 3, "more": {"b": 1}}
NAMESPACES = ["one", "two"]
KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab:# '\n", max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
SIZES = st.integers(-1, 5)
SECTIONS = st.fixed_dictionaries(
    {}, optional={"size": SIZES, "more": st.dictionaries(KEYS, VALUES, max_size=3)}
)


class Model(Frozen):
    size: int = Field(default=1, ge=0)
    more: dict[str, Any] = Field(default_factory=dict)


def merge(under: Any, over: Any, *, keep_none: bool = True) -> Any:
    """The plain model of a deep merge."""
    out = dict(under)
    for key, value in over.items():
        if value is None and not keep_none:
            continue
        if isinstance(value, dict):
            below = out.get(key)
            out[key] = merge(below if isinstance(below, dict) else {}, value, keep_none=keep_none)
        else:
            out[key] = value
    return out


class Settings(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.tree = Tree(Context(), Path(self.folder.name) / "settings.yaml")
        self.stored: dict[str, Any] = {}
        self.good = dict.fromkeys(NAMESPACES, Model.model_validate(BASE))
        self.revisions = dict.fromkeys(NAMESPACES, 0)
        self.scopes: dict[str, Any] = {}
        self.owners: list[Any] = []
        self.run(self.tree.open)
        self.register()

    def register(self) -> None:
        for ns in NAMESPACES:
            self.scopes[ns], owner = self.run(self.tree.register, ns, Model, base=BASE)
            self.owners.append(owner)

    def run(self, call: Any, *args: Any, **options: Any) -> Any:
        async def wait() -> Any:
            return await call(*args, **options)

        return self.runner.run(wait())

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.tree.root.dispose)
            self.runner.close()
            self.folder.cleanup()

    def write(self, ns: str, section: dict[str, Any], call: Any) -> None:
        """Make a write, and do the same to the model."""
        fits = merge(BASE, section).get("size", 1) >= 0
        try:
            self.run(call)
        except SettingsRefused:
            assert not fits
        else:
            assert fits
            self.take(ns, section)

    def take(self, ns: str, section: dict[str, Any]) -> None:
        if section != self.stored.get(ns, {}) or str(section) != str(self.stored.get(ns, {})):
            self.revisions[ns] += 1
        self.stored = {key: item for key, item in self.stored.items() if key != ns}
        if section:
            self.stored[ns] = section
        layers = merge(BASE, section)
        if layers["size"] >= 0:
            self.good[ns] = Model.model_validate(layers)

    @rule(ns=st.sampled_from(NAMESPACES), patch=SECTIONS)
    def update(self, ns: str, patch: dict[str, Any]) -> None:
        wanted = merge(self.stored.get(ns, {}), patch, keep_none=False)
        self.write(ns, wanted, lambda: self.tree.settings.update(ns, patch))

    @rule(ns=st.sampled_from(NAMESPACES), section=SECTIONS)
    def replace(self, ns: str, section: dict[str, Any]) -> None:
        self.write(ns, section, lambda: self.tree.settings.replace(ns, section))

    @rule(ns=st.sampled_from(NAMESPACES), key=KEYS, value=VALUES)
    def set_member(self, ns: str, key: str, value: Any) -> None:
        old = self.stored.get(ns, {})
        wanted = {**old, "more": {**old.get("more", {}), key: value}}
        ops = [{"op": "set", "path": ["more", key], "value": value}]
        self.write(ns, wanted, lambda: self.tree.settings.mutate(ns, ops))

    @rule(ns=st.sampled_from(NAMESPACES), key=KEYS)
    def unset_member(self, ns: str, key: str) -> None:
        old = self.stored.get(ns, {})
        wanted = dict(old)
        if "more" in old:
            wanted["more"] = {name: item for name, item in old["more"].items() if name != key}
        ops = [{"op": "unset", "path": ["more", key]}]
        self.write(ns, wanted, lambda: self.tree.settings.mutate(ns, ops))

    @rule(ns=st.sampled_from(NAMESPACES), section=SECTIONS)
    def write_stale(self, ns: str, section: dict[str, Any]) -> None:
        with pytest.raises(SettingsConflict) as caught:
            self.run(lambda: self.tree.settings.replace(ns, section, 10_000))
        assert caught.value.actual == self.revisions[ns]

    @rule(ns=st.sampled_from(NAMESPACES), size=SIZES)
    def edit(self, ns: str, size: int) -> None:
        """Edit one value by hand, with a comment, and let it be read."""
        section = merge(self.stored.get(ns, {}), {"size": size})
        others = {key: item for key, item in self.stored.items() if key != ns}
        lines = [f"# about {key}\n{key}: {json.dumps(item)}\n" for key, item in others.items()]
        self.tree.write("".join(lines) + f"# about {ns}\n{ns}: {json.dumps(section)}\n")
        self.run(self.tree.file.reload)
        self.take(ns, section)

    @rule()
    def restart(self) -> None:
        for owner in self.owners:
            self.run(owner.dispose)
        self.owners.clear()
        self.run(self.tree.provider.dispose)
        if any(merge(BASE, self.stored.get(ns, {}))["size"] < 0 for ns in NAMESPACES):
            self.tree.path.unlink()
            self.stored = {}
        self.run(self.tree.mount)
        self.register()
        self.revisions = dict.fromkeys(NAMESPACES, 0)
        self.good = {
            ns: Model.model_validate(merge(BASE, self.stored.get(ns, {}))) for ns in NAMESPACES
        }

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "owners"):
            return
        found = {each.ns: each for each in self.tree.settings.describe()}
        for ns, scope in self.scopes.items():
            assert scope.get() == self.good[ns]
            assert thaw(found[ns].user or {}) == self.stored.get(ns, {})
            assert found[ns].revision == self.revisions[ns]
        text = self.tree.text() if self.tree.path.exists() else ""
        assert (load_yaml(text, "settings") or {}) == self.stored


Settings.TestCase.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=20, deadline=None
)
TestSettings = Settings.TestCase
