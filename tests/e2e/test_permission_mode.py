"""What ``DSH_PERMISSION_MODE`` says counts for a real run, whatever the user stored before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Home, call, say

from dsh.testing.provider import Provider

WRITE = {
    "replies": [{"calls": [call("write", file_path="made.txt", content="x")]}, say("I tried.")]
}
KINDS = ("permission/preset", "sandbox/mode", "approval/policy")


@pytest.mark.parametrize(
    ("stored", "mode", "pinned"),
    [
        ("danger-full-access", "read-only", ["read-only", "read-only", "ask"]),
        ("danger-full-access", None, ["danger-full-access", "danger-full-access", "never"]),
        ("read-only", "workspace-write", ["workspace-write", "workspace-write", "ask"]),
    ],
)
def test_a_mode_that_was_set_outranks_the_stored_default(
    home: Home, provide: Callable[..., Provider], stored: str, mode: str | None, pinned: list[str]
) -> None:
    home.folder.mkdir(exist_ok=True)
    (home.folder / "settings.yaml").write_text(f"permission:\n  defaultPreset: {stored}\n")
    if mode is not None:
        home.variables["DSH_PERMISSION_MODE"] = mode
    provide(WRITE)
    ran = home.headless("write a file")
    assert (ran.code, ran.out) == (0, "I tried.\n"), ran.err
    assert (home.workspace / "made.txt").exists() == (mode != "read-only")
    stated = [next(iter(e["data"].values())) for e in home.log().events if e["type"] in KINDS]
    assert stated == pinned
