from __future__ import annotations

from typing import Any

import pytest

from dsh.control.default_model.plugin import ConfiguredDefaultModel
from dsh.control.default_model.service import AgentDefaultModel, ModelSelection
from dsh.kernel import Context, ValidationError


async def test_the_row_is_the_selection(root: Context) -> None:
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    assert service.current_selection() == ModelSelection("p", "m", None)


async def test_saving_without_a_settings_store_changes_nothing(root: Context) -> None:
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    await service.save_selection(ModelSelection("other", "x"))
    assert service.current_selection().provider == "p"


@pytest.mark.parametrize(
    "config", [{}, {"provider": "p"}, {"provider": "", "model": "m"}, {"reasoningEffort": "high"}]
)
async def test_a_wrong_row_fails_at_load(root: Context, config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await root.plugin(ConfiguredDefaultModel, config)
