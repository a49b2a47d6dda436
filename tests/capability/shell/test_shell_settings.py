"""The section ``shell`` of the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dsh.capability.shell.service import ShellExecutor, ShellRequest
from dsh.kernel import Context, Fiber
from dsh.state.settings import SettingsProvider, SettingsRefused
from dsh.state.settings.file import FileSettings


@pytest.fixture
async def settings(root: Context, tmp_path: Path) -> SettingsProvider:
    await root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
    return root.require(SettingsProvider)


async def test_the_limits_of_the_user_outrank_the_row_from_the_next_command(
    settings: SettingsProvider, shell: ShellExecutor, root: Context
) -> None:
    default_s, most_s = shell.timeouts
    await settings.update("shell", {"timeoutMs": 5000, "maxOutputBytes": 7})
    assert (shell.timeouts, default_s) == ((5.0, most_s), 120.0)
    spec = shell.resolve(ShellRequest(command="true"))
    assert (spec.timeout_s, spec.max_output_bytes) == (5.0, 7)


@pytest.mark.parametrize("patch", [{"timeoutMs": 0}, {"maxOutputBytes": -1}, {"graceMs": 1}])
async def test_limits_that_make_no_sense_are_refused(
    settings: SettingsProvider,
    shell: ShellExecutor,
    patch: dict[str, int],
) -> None:
    with pytest.raises(SettingsRefused):
        await settings.update("shell", patch)
    assert shell.timeouts[0] == 120.0


async def test_without_settings_the_row_decides(
    mount: Callable[..., Awaitable[Fiber]], policy: object, sandbox: object, root: Context
) -> None:
    await mount("dsh.capability.shell.sandboxed", {"timeoutMs": 9000})
    assert root.require(ShellExecutor).timeouts[0] == 9.0
