"""The default model of a deployment: row ``agent-default-model``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from dsh.control.default_model.service import AgentDefaultModel, ModelSelection
from dsh.kernel import Context


class DefaultModelConfig(BaseModel):
    """The route that agents take when nobody chose another."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    provider: str = Field(min_length=1)
    """Name of a registered model provider."""
    model: str = Field(min_length=1)
    """The provider's id of the model."""


class ConfiguredDefaultModel(AgentDefaultModel):
    """The selection of the row; nothing can be saved without a settings store."""

    Config = DefaultModelConfig

    def __init__(self, ctx: Context, config: DefaultModelConfig) -> None:
        super().__init__(ctx, config)
        self._selection = ModelSelection(config.provider, config.model)

    def current_selection(self) -> ModelSelection:
        """See `AgentDefaultModel.current_selection`."""
        return self._selection

    async def save_selection(self, selection: ModelSelection) -> None:
        """See `AgentDefaultModel.save_selection`."""


plugin = ConfiguredDefaultModel
