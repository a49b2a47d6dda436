"""The default model of a deployment: row ``agent-default-model``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dsh.control.default_model.service import AgentDefaultModel, ModelSelection
from dsh.kernel import Context
from dsh.state.settings.service import LiveSection

_NAMESPACE = "agent-default-model"


class DefaultModelConfig(BaseModel):
    """The route that agents take when nobody chose another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str = Field(min_length=1)
    """Name of a registered model provider."""
    model: str = Field(min_length=1)
    """The provider's id of the model."""


class DefaultModelSettings(DefaultModelConfig):
    """The route that the user chose."""

    model_config = ConfigDict(populate_by_name=True)

    reasoning_effort: str | None = Field(default=None, alias="reasoningEffort", min_length=1)
    """An effort of that model; only a user chooses one."""


class ConfiguredDefaultModel(AgentDefaultModel):
    """The selection of the row, under the one that the user stored."""

    Config = DefaultModelConfig

    def __init__(self, ctx: Context, config: DefaultModelConfig) -> None:
        super().__init__(ctx, config)
        self._settings = LiveSection(ctx, _NAMESPACE, DefaultModelSettings, row=config.model_dump())

    def current_selection(self) -> ModelSelection:
        """See `AgentDefaultModel.current_selection`."""
        chosen = self._settings.get()
        return ModelSelection(chosen.provider, chosen.model, chosen.reasoning_effort)

    async def save_selection(self, selection: ModelSelection) -> None:
        """See `AgentDefaultModel.save_selection`."""
        section: dict[str, Any] = {"provider": selection.provider, "model": selection.model}
        if selection.reasoning_effort is not None:
            section["reasoningEffort"] = selection.reasoning_effort
        await self._settings.replace(section)


plugin = ConfiguredDefaultModel
