from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.control.default_model.plugin import ConfiguredDefaultModel
from dsh.control.default_model.service import AgentDefaultModel, ModelSelection
from dsh.kernel import Context, ValidationError
from dsh.state.settings import SettingsRefused
from dsh.state.settings.file import FileSettings
from dsh.state.settings.service import SettingsProvider


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


async def test_what_the_user_saved_outranks_the_row_and_is_live(
    root: Context, tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    await root.plugin(FileSettings, {"path": str(path)})
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    await service.save_selection(ModelSelection("other", "x", "high"))
    assert service.current_selection() == ModelSelection("other", "x", "high")
    await service.save_selection(ModelSelection("other", "y"))
    assert service.current_selection() == ModelSelection("other", "y")
    assert path.read_text() == 'agent-default-model:\n  provider: other\n  model: "y"\n'


@pytest.mark.parametrize("selection", [ModelSelection("", "m"), ModelSelection("p", "")])
async def test_an_unusable_selection_is_not_saved(
    root: Context, tmp_path: Path, selection: ModelSelection
) -> None:
    await root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    with pytest.raises(SettingsRefused):
        await service.save_selection(selection)
    assert service.current_selection() == ModelSelection("p", "m")


async def test_a_choice_made_elsewhere_is_seen_at_once_and_the_row_comes_back_without_it(
    root: Context, tmp_path: Path
) -> None:
    settings = await root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    provider = root.require(SettingsProvider)
    await provider.replace("agent-default-model", {"provider": "q", "model": "n"})
    assert service.current_selection() == ModelSelection("q", "n")
    await settings.dispose()
    assert service.current_selection() == ModelSelection("p", "m")


async def test_what_was_saved_is_kept_for_the_next_start(tmp_path: Path) -> None:
    async def start(root: Context) -> AgentDefaultModel:
        await root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
        await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
        return root.require(AgentDefaultModel)

    first, second = Context(), Context()
    await (await start(first)).save_selection(ModelSelection("unheard-of", "x", "high"))
    await first.dispose()
    assert (await start(second)).current_selection() == ModelSelection("unheard-of", "x", "high")
    await second.dispose()


async def test_a_selection_is_a_value_of_its_own(root: Context) -> None:
    await root.plugin(ConfiguredDefaultModel, {"provider": "p", "model": "m"})
    service = root.require(AgentDefaultModel)
    with pytest.raises(AttributeError):
        service.current_selection().model = "other"  # type: ignore[misc]
    assert service.current_selection() == ModelSelection("p", "m")
