"""The table of permission presets of a deployment: row ``permission``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from dsh.capability.sandbox.service import SandboxMode, SandboxPolicy, is_wider
from dsh.capability.shell.service import ShellExecutor
from dsh.control.approval.events import set_approval_policy
from dsh.control.approval.service import ApprovalPolicy, ApprovalService
from dsh.control.commands.service import CommandRuntime
from dsh.control.permissions.events import PERMISSION_PRESET, PermissionPresetSelected
from dsh.control.permissions.facts import facts_of, permissions_unit
from dsh.control.permissions.service import (
    CUSTOM,
    InvalidPresets,
    PermissionFacts,
    PermissionPresetService,
    PresetOption,
    PresetSelection,
    PresetSpec,
    UnknownPreset,
)
from dsh.state.projections.service import ProjectionRegistry
from dsh.state.session.events import SESSION_CREATED, SESSION_END_SEED, SessionCreated
from dsh.state.session.service import SessionStore
from dsh.state.settings.service import LiveSection

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context
    from dsh.state.session.session import Session

_NAMESPACE = "permission"


class Preset(BaseModel):
    """One row of the table."""

    model_config = ConfigDict(extra="forbid")

    sandbox: SandboxMode
    """How wide file access is."""
    approval: ApprovalPolicy
    """Whether people are asked."""
    name: str | None = None
    """How menus call it; the key when absent."""
    description: str | None = None
    """A sentence for menus."""


def _default_table() -> dict[str, Preset]:
    return {
        "workspace-write": Preset(sandbox="workspace-write", approval="ask"),
        "danger-full-access": Preset(sandbox="danger-full-access", approval="never"),
    }


class PermissionConfig(BaseModel):
    """Which presets there are, in the order of menus."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    presets: dict[str, Preset] = Field(default_factory=_default_table)
    """By name; ``custom`` is taken."""
    default_preset: str | None = Field(default=None, alias="defaultPreset")
    """What new sessions get; when absent, the preset that equals what the rows configure."""
    mode: SandboxMode | None = None
    """What who starts the process chose: new sessions get the preset that has it, whatever the
    defaults are; of several the one that equals the rows, else the first."""


class PermissionSettings(BaseModel):
    """What the user wants new sessions to have."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)

    default_preset: str | None = Field(default=None, alias="defaultPreset")
    """A preset of the table; sessions that exist keep what they have."""


class TablePresets(PermissionPresetService):
    """The presets of the row."""

    inject = (ShellExecutor, SandboxPolicy, ApprovalService, SessionStore)
    Config = PermissionConfig

    def __init__(self, ctx: Context, config: PermissionConfig | None = None) -> None:
        super().__init__(ctx, config)
        config = config or PermissionConfig()
        self._table = {
            name: PresetSpec(row.sandbox, row.approval, row.name, row.description)
            for name, row in config.presets.items()
        }
        if CUSTOM in self._table:
            raise InvalidPresets(f"a preset cannot be called {CUSTOM!r}: that is what no preset is")
        if ctx.require(ShellExecutor).sandbox_mode is None:
            raise InvalidPresets(
                "permission presets set how commands are confined, and the shell of this "
                "deployment confines none; disable the row 'permission' or use the row "
                "'bash-sandbox'"
            )
        self._launched = None if config.mode is None else self._preset_of(config.mode)
        row: dict[str, str] = {}
        if config.default_preset is not None:
            self._check_default(config.default_preset)
            row["defaultPreset"] = config.default_preset
        self._settings = LiveSection(
            ctx, _NAMESPACE, PermissionSettings, row=row, validate=self._check_settings
        )
        self._check_settings(self._settings.get())

    def start(self) -> None:
        """Pin the sessions that are live and those to come; offer projection and command."""
        ctx = self.ctx
        sessions = ctx.require(SessionStore)
        sessions.declare(PERMISSION_PRESET)
        ctx.inject([ProjectionRegistry], self._offer_projection)
        ctx.inject([CommandRuntime], self._offer_command)
        ctx.on(SESSION_CREATED, self._created)
        for session in sessions.all():
            self._pin(session)

    @property
    def names(self) -> list[str]:
        """See `PermissionPresetService.names`."""
        return list(self._table)

    @property
    def default_preset(self) -> str:
        """See `PermissionPresetService.default_preset`."""
        preset = self._launched or self._settings.get().default_preset
        preset = preset or self._matching(self._default_facts())
        assert preset is not None  # whatever could be in force was checked
        return preset

    def current(self, events: Iterable[Mapping[str, Any]]) -> str:
        """See `PermissionPresetService.current`."""
        return self._derived(facts_of(events))

    def resolve(self, name: str) -> PresetSpec:
        """See `PermissionPresetService.resolve`."""
        spec = self._table.get(name)
        if spec is None:
            raise UnknownPreset(name, self.names)
        return spec

    def option_of(self, name: str) -> PresetOption:
        """See `PermissionPresetService.option_of`."""
        if name == CUSTOM:
            return PresetOption(
                value=CUSTOM, name="Custom", description="set apart from the presets"
            )
        spec = self.resolve(name)
        option = PresetOption(value=name, name=spec.name or name)
        if spec.description is not None:
            option["description"] = spec.description
        return option

    def select_for(self, state: PermissionFacts) -> PresetSelection:
        """See `PermissionPresetService.select_for`."""
        current = self._derived(state)
        shown = [*self._table, CUSTOM] if current == CUSTOM else [*self._table]
        options = [self.option_of(name) for name in shown]
        return PresetSelection(options=options, currentValue=current)

    def set(self, session: Session, name: str, *, agent: Agent | None = None) -> None:
        """See `PermissionPresetService.set`."""
        spec = self.resolve(name)
        facts = facts_of(session.events)
        if self._derived(facts) != name:
            session.append(PERMISSION_PRESET, PermissionPresetSelected(preset=name))
        before = self._filled(facts)
        if before["sandbox"] != spec.sandbox:
            self.ctx.require(SandboxPolicy).set_mode(session, spec.sandbox)
        if before["approval"] == spec.approval:
            return
        if agent is not None:
            self.ctx.require(ApprovalService).set_policy(agent, spec.approval)
        else:
            set_approval_policy(session, spec.approval)

    def _default_facts(self) -> PermissionFacts:
        return PermissionFacts(
            preset=None,
            sandbox=self.ctx.require(ShellExecutor).sandbox_mode,
            approval=self.ctx.require(ApprovalService).default_policy,
        )

    def _filled(self, facts: PermissionFacts) -> PermissionFacts:
        """Return what holds: what the log does not say, the rows do."""
        rows = self._default_facts()
        return PermissionFacts(
            preset=facts["preset"],
            sandbox=facts["sandbox"] or rows["sandbox"],
            approval=facts["approval"] or rows["approval"],
        )

    def _derived(self, facts: PermissionFacts) -> str:
        holds = self._filled(facts)
        recorded = self._table.get(holds["preset"] or "")
        if recorded is not None and _matches(recorded, holds):
            return holds["preset"] or ""
        return self._matching(holds) or CUSTOM

    def _matching(self, facts: PermissionFacts) -> str | None:
        return next((name for name, spec in self._table.items() if _matches(spec, facts)), None)

    def _created(self, created: SessionCreated) -> None:
        self._pin(created.session)

    def _pin(self, session: Session) -> None:
        """Write down what holds for a session, so that a later default does not change it."""
        facts = facts_of(session.events)
        stated = any(value is not None for value in facts.values())
        seeded = any(event["type"] == SESSION_END_SEED.name for event in reversed(session.events))
        if stated or seeded:
            holds = self._filled(facts)
            derived = self._derived(facts)
            preset = None if derived == CUSTOM else derived
        else:
            preset = self.default_preset
            spec = self.resolve(preset)
            holds = PermissionFacts(preset=preset, sandbox=spec.sandbox, approval=spec.approval)
        if facts["preset"] is None and preset is not None:
            session.append(PERMISSION_PRESET, PermissionPresetSelected(preset=preset))
        if facts["sandbox"] is None and holds["sandbox"] is not None:
            self.ctx.require(SandboxPolicy).set_mode(session, holds["sandbox"])
        if facts["approval"] is None and holds["approval"] is not None:
            set_approval_policy(session, holds["approval"])

    def _preset_of(self, mode: SandboxMode) -> str:
        """Return the preset that the ``mode`` of the row stands for.

        Raises:
            InvalidPresets: none has it, or the rows confine more than it does.
        """
        rows = self._default_facts()
        if rows["sandbox"] is not None and is_wider(mode, rows["sandbox"]):
            raise InvalidPresets(
                f"the row 'permission' has the mode {mode!r}, which DSH_PERMISSION_MODE chooses, "
                f"and the row 'sandbox-policy' only {rows['sandbox']!r}; let both say the same"
            )
        fitting = [name for name, spec in self._table.items() if spec.sandbox == mode]
        if not fitting:
            raise InvalidPresets(
                f"no preset has the sandbox mode {mode!r}, which DSH_PERMISSION_MODE chooses; "
                "add one or choose another mode"
            )
        equal = self._matching(PermissionFacts({**rows, "sandbox": mode}))
        return equal or fitting[0]

    def _check_settings(self, settings: PermissionSettings) -> None:
        self._check_default(settings.default_preset)

    def _check_default(self, name: str | None) -> None:
        """Refuse a default that new sessions could not be given.

        Raises:
            InvalidPresets: there is no such preset; or none is named, and none fits the rows.
        """
        if name is not None and name not in self._table:
            known = ", ".join(self._table) or "none"
            raise InvalidPresets(f"the defaultPreset {name!r} is no preset (available: {known})")
        rows = self._default_facts()
        if name is None and self._launched is None and self._matching(rows) is None:
            raise InvalidPresets(
                f"no preset has the configured sandbox mode {rows['sandbox']!r} with the approval "
                f"policy {rows['approval']!r}; add one or name a defaultPreset"
            )

    def _offer_projection(self, ctx: Context) -> None:
        ctx.require(ProjectionRegistry).register(permissions_unit(self.select_for))

    def _offer_command(self, ctx: Context) -> None:
        from dsh.control.permissions.command import permission_command

        ctx.require(CommandRuntime).register(permission_command(self))


plugin = TablePresets


def _matches(spec: PresetSpec, facts: PermissionFacts) -> bool:
    return spec.sandbox == facts["sandbox"] and spec.approval == facts["approval"]
