"""The row ``storage``: where backends and the forms that use them find each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsh.state.storage.errors import (
    BackendNotFound,
    DuplicateBackend,
    DuplicateMount,
    FormNotMounted,
)
from dsh.state.storage.service import Storage, StorageBackend, check_name

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.state.storage.domain.service import DomainFacility


class StorageHub(Storage):
    """The backends and forms that are mounted; see `Storage`."""

    def __init__(self, ctx: Context, config: None = None) -> None:
        self._backends: dict[str, StorageBackend] = {}
        self._forms: dict[str, object] = {}
        super().__init__(ctx, config)

    def register(self, name: str, backend: StorageBackend) -> Effect:
        """See `Storage.register`."""
        check_name("storage backend", name)
        if name in self._backends:
            raise DuplicateBackend(name)
        return self._hold(self._backends, name, backend, f"storage.register({name!r})")

    def backend(self, name: str) -> StorageBackend:
        """See `Storage.backend`."""
        found = self._backends.get(name)
        if found is None:
            raise BackendNotFound(name, self.backend_names())
        return found

    def backend_names(self) -> list[str]:
        """See `Storage.backend_names`."""
        return list(self._backends)

    def mount(self, form: str, facility: object) -> Effect:
        """See `Storage.mount`."""
        if form in self._forms:
            raise DuplicateMount(form)
        return self._hold(self._forms, form, facility, f"storage.mount({form!r})")

    def form(self, name: str) -> Any:
        """See `Storage.form`."""
        if name not in self._forms:
            raise FormNotMounted(name)
        return self._forms[name]

    @property
    def domain(self) -> DomainFacility:
        """See `Storage.domain`."""
        facility: DomainFacility = self.form("domain")
        return facility

    def _hold(self, held: dict[str, Any], name: str, item: object, label: str) -> Effect:
        def setup() -> Callable[[], object]:
            held[name] = item
            return lambda: held.pop(name, None)

        return self.caller.effect(setup, label)


plugin = StorageHub
