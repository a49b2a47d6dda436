"""The row ``storage-domain``: opens domains, each on the backend that its name is routed to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.errors import error_chain
from dsh.base.values import changed
from dsh.state.storage.domain.events import DOMAIN_CHANGED
from dsh.state.storage.domain.records import OpenDomain, Records, VolatileUnit
from dsh.state.storage.domain.service import Domain, DomainFacility, DomainSpec
from dsh.state.storage.errors import DomainOpen, FacetUnsupported, UnitOpen
from dsh.state.storage.service import (
    KvFacet,
    KvUnit,
    Storage,
    StorageError,
    UnitDescriptor,
    backend_key,
)

if TYPE_CHECKING:
    from dsh.kernel import Context

_log = logging.getLogger("dsh.storage")

name = "storage-domain"
inject = (Storage,)


class Config(BaseModel):
    """Which backend keeps which domain."""

    model_config = ConfigDict(extra="forbid")

    backend: Annotated[str, Field(min_length=1)]
    """The backend of all domains that have no route."""
    routes: dict[str, str] = {}
    """Backends of single domains."""


def apply(ctx: Context, config: Config) -> None:
    """Provide ``ctx.storage_domain`` while every backend of the config is there."""
    backends = {config.backend, *config.routes.values()}
    needs = [Storage.name, *map(backend_key, sorted(backends))]
    # A dependant of the backends, so that domains finish their writes before a backend ends.
    ctx.inject(needs, lambda inner: inner.plugin(_Domains, config))


class _Domains(DomainFacility):
    """The open domains; see `DomainFacility`."""

    def __init__(self, ctx: Context, config: Config) -> None:
        self._backend, self._routes = config.backend, config.routes
        self._open: dict[str, OpenDomain | None] = {}
        super().__init__(ctx, config)

    def start(self) -> Callable[[], Any]:
        """Offer the form ``domain``; close what is open at the end."""
        self.ctx.defer(self.close_all, "storage_domain.close_all()")
        mounted = self.ctx.require(Storage).mount("domain", self)
        return mounted.dispose

    async def open(self, spec: DomainSpec) -> Domain:
        """See `DomainFacility.open`."""
        unit = _descriptor(spec)
        spec = changed(spec, global_initial=_initial(spec))
        if spec.name in self._open:
            raise DomainOpen(spec.name)
        facet = self._facet(spec.name)
        caller = self.caller
        self._open[spec.name] = None
        try:
            domain = await self._opened(spec, unit, facet)
            caller.defer(domain.close, f"storage_domain.open({spec.name!r})")
        except BaseException:
            opened = self._open.pop(spec.name, None)
            if opened is not None:
                await opened.close()
            raise
        return domain

    def get(self, name: str) -> Domain | None:
        """See `DomainFacility.get`."""
        return self._open.get(name)

    async def close_all(self) -> None:
        """See `DomainFacility.close_all`."""
        for domain in list(self._open.values()):
            if domain is not None:
                await domain.close()

    async def _opened(self, spec: DomainSpec, unit: UnitDescriptor, facet: KvFacet) -> OpenDomain:
        records = Records(spec)
        try:
            held = await _load(facet, unit, records)
        except UnitOpen:
            raise
        except (StorageError, OSError) as error:
            if spec.recovery != "reset":
                raise
            held = await _begin_anew(facet, unit, error)
        released = partial(self._open.pop, spec.name, None)
        announce = partial(self.ctx.emit, DOMAIN_CHANGED)
        domain = self._open[spec.name] = OpenDomain(records, held, announce, released)
        return domain

    def _facet(self, domain: str) -> KvFacet:
        backend = self._routes.get(domain, self._backend)
        facet = self.ctx.require(Storage).backend(backend).kv
        if facet is None:
            raise FacetUnsupported(domain, backend)
        return facet


async def _load(facet: KvFacet, unit: UnitDescriptor, records: Records) -> KvUnit:
    """Open a unit and take what it holds; leave nothing open on failure."""
    held = await facet.open(unit)
    try:
        records.fill(await held.load_all())
    except BaseException:
        await held.close()
        raise
    return held


async def _begin_anew(facet: KvFacet, unit: UnitDescriptor, error: Exception) -> KvUnit:
    """Put aside what cannot be read; keep records in memory when not even that works."""
    _log.warning("records that can be made again are reset: %s", error_chain(error))
    held: KvUnit | None = None
    try:
        await facet.discard(unit.name)
        held = await facet.open(unit)
        await held.load_all()
    except (StorageError, OSError) as second:
        _log.warning("%r is kept in memory only: %s", unit.name, error_chain(second))
        if held is not None:
            await held.close()
        return VolatileUnit(unit)
    return held


def _descriptor(spec: DomainSpec) -> UnitDescriptor:
    has_global = spec.global_schema is not None
    return UnitDescriptor(spec.name, spec.version, tuple(spec.tables), has_global)


def _initial(spec: DomainSpec) -> Any:
    """Return the frozen initial global value of a spec that has one.

    Raises:
        ValueError: the schema takes ``None``, which stands for no value in storage.
        InvalidRecord: the initial value does not fit the schema.
    """
    schema = spec.global_schema
    if schema is None:
        return None
    try:
        schema(None)
    except Exception:  # as in `Records.checked`
        return Records(spec).checked(schema, spec.global_initial)
    raise ValueError(f"the global schema of the domain {spec.name!r} takes None; it must not")
