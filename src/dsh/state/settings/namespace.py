"""One registered namespace: resolve its layers, and tell its watchers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from dsh.base.errors import message_of
from dsh.state.settings.changes import merged
from dsh.state.settings.schema import ModelSchema, freeze_model, spelled
from dsh.state.settings.service import Applies, SettingsRefused, SettingsScope

if TYPE_CHECKING:
    import asyncio

    from dsh.kernel import Context, Effect
    from dsh.state.settings.engine import DocumentSettings

M = TypeVar("M", bound=BaseModel)

__all__ = ["Namespace", "Watcher"]

_HIDDEN = "is not acceptable"


class Namespace(SettingsScope[M]):
    """The layers of a namespace and what they resolve to; also its scope.

    Attributes:
        value: What the layers resolved to when they last did.
    """

    def __init__(
        self,
        engine: DocumentSettings,
        owner: Context,
        ns: str,
        model: type[M],
        base: Mapping[str, Any] | None,
        applies: Applies,
        check: Callable[[M], object] | None,
    ) -> None:
        self.ns, self.model, self.base, self.applies = ns, model, base, applies
        self.value: M
        self._engine, self._owner, self._check = engine, owner, check
        self._schema: ModelSchema | None = None
        self._watchers: dict[Watcher[M], None] = {}

    def __repr__(self) -> str:
        return f"<settings {self.ns!r}>"

    @property
    def schema(self) -> ModelSchema:
        """What the model says of itself; worked out when it is first asked for."""
        if self._schema is None:
            self._schema = ModelSchema(self.model)
        return self._schema

    def get(self) -> M:
        """See `SettingsScope.get`."""
        return self.value

    def watch(self, callback: Callable[[M, M], Awaitable[object] | object]) -> Effect:
        """See `SettingsScope.watch`."""
        watcher = Watcher(self._owner, callback, self.ns, self._engine.track)

        def setup() -> Callable[[], object]:
            self._watchers[watcher] = None
            return undo

        def undo() -> object:
            self._watchers.pop(watcher, None)
            return watcher.stop()

        return self._owner.effect(setup, f"settings.watch({self.ns!r})")

    def update(
        self, patch: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsScope.update`."""
        return self._engine.update(self.ns, patch, expected_revision)

    def replace(
        self, section: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsScope.replace`."""
        return self._engine.replace(self.ns, section, expected_revision)

    def spell(self, section: Any) -> Mapping[str, Any]:
        """Return a section with the wire names of its fields.

        Raises:
            SettingsRefused: it is no mapping.
        """
        if not isinstance(section, dict):
            problem = f"must be a mapping, got {type(section).__name__}"
            raise SettingsRefused(self.ns, "$", problem)
        return spelled(self.model, section)

    def resolve(self, section: Any) -> M:
        """Return what the namespace comes to with a user's section.

        Raises:
            SettingsRefused: the section does not fit; says where, and never a secret.
        """
        user = self.spell(section)
        layers = merged(spelled(self.model, self.base or {}), user)
        refused: SettingsRefused
        try:
            resolved = self.model.model_validate(layers)
        except ValidationError as error:
            refused = self._refusal(error, layers)
        except Exception as error:  # a validator of the model's own
            problem = self._clean(message_of(error), layers)
            refused = SettingsRefused(self.ns, "$", problem)
        else:
            freeze_model(resolved)
            objection = self._objection(resolved)
            if objection is None:
                return resolved
            refused = SettingsRefused(self.ns, "$", self._clean(objection, layers))
        # Raised out here, it does not refer to the validation's error, which quotes its input.
        raise refused

    def tell(self, next_value: M, prev: M) -> None:
        """Queue a change for each watcher."""
        for watcher in tuple(self._watchers):
            watcher.tell(next_value, prev)

    def _objection(self, resolved: M) -> str | None:
        if self._check is None:
            return None
        try:
            self._check(resolved)
        except Exception as error:
            return message_of(error)
        return None

    def _refusal(self, error: ValidationError, layers: Mapping[str, Any]) -> SettingsRefused:
        issue = error.errors(include_url=False, include_context=False)[0]
        path = tuple(issue["loc"])
        # What a union member is called stands in the path, but not in the section.
        shown = "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
        secret = self.schema.touches_secret(path) and issue["type"] not in (
            "missing",
            "extra_forbidden",
        )
        problem = _HIDDEN if secret else _sentence(issue["msg"])
        return SettingsRefused(
            self.ns, self._clean(shown, layers, "$"), self._clean(problem, layers)
        )

    def _clean(self, text: str, layers: Mapping[str, Any], instead: str = _HIDDEN) -> str:
        """Return ``instead`` of a text that repeats a secret."""
        secrets = self.schema.secret_texts(layers)
        return instead if any(secret and secret in text for secret in secrets) else text


class Watcher(Generic[M]):
    """Calls one callback, one change after the other."""

    def __init__(
        self,
        owner: Context,
        callback: Callable[[M, M], Awaitable[object] | object],
        ns: str,
        track: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._owner, self._callback, self._track = owner, callback, track
        self._label = f"settings.watch({ns!r})"
        self._due: deque[tuple[M, M]] = deque()
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False

    def tell(self, next_value: M, prev: M) -> None:
        """Queue one change."""
        if self._stopped:
            return
        self._due.append((next_value, prev))
        if self._task is None or self._task.done():
            fiber = self._owner.fiber
            self._task = fiber.own_task(self._run(), self._label, cancel=False)
            self._track(self._task)

    def stop(self) -> Awaitable[object] | None:
        """Start no more calls; returns what to wait for, unless it is a call that stops itself."""
        import asyncio

        self._stopped = True
        self._due.clear()
        task = self._task
        if task is None or task.done() or task is asyncio.current_task():
            return None
        return asyncio.wait([task])

    async def _run(self) -> None:
        while self._due and not self._stopped and not self._owner.stop.aborted:
            change = self._due.popleft()
            try:
                result = self._callback(*change)
                if isawaitable(result):
                    await result
            except Exception as error:
                self._owner.report(error, label=self._label)
        self._due.clear()


def _sentence(message: str) -> str:
    """Return a validator's message as part of a sentence."""
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
