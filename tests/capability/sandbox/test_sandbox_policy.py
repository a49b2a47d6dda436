from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dsh.base.signal import AbortController
from dsh.capability.sandbox.events import SANDBOX_MODE
from dsh.capability.sandbox.service import (
    EscalationRefused,
    EscalationRequest,
    SandboxMode,
    SandboxPolicy,
    is_wider,
)
from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.execution.prompt.service import SystemPrompt, render_context_snapshot
from dsh.kernel import Context
from dsh.state.session.service import SessionStore


def exists(path: Path) -> bool:
    return os.path.lexists(path)


def test_modes_are_ordered_by_width() -> None:
    assert is_wider("workspace-write", "read-only")
    assert is_wider("danger-full-access", "workspace-write")
    assert not is_wider("read-only", "read-only")
    assert not is_wider("read-only", "danger-full-access")


async def test_the_mode_is_the_argument_else_the_log_else_the_default(
    policy: SandboxPolicy, agent: Any
) -> None:
    assert policy.resolve(agent.session).mode == "workspace-write"
    policy.set_mode(agent.session, "read-only")
    policy.set_mode(agent.session, "danger-full-access", source="delegation")
    assert policy.override_of(agent.session) == "danger-full-access"
    assert policy.resolve(agent.session).mode == "danger-full-access"
    assert policy.resolve(agent.session, "read-only").mode == "read-only"
    assert policy.resolve().mode == "workspace-write"


async def test_a_switch_is_one_event(policy: SandboxPolicy, agent: Any) -> None:
    before = agent.session.seq
    policy.set_mode(agent.session, "read-only", source="delegation")
    event = agent.session.events[-1]
    assert agent.session.seq == before + 1
    assert event["type"] == SANDBOX_MODE.name
    assert event["data"] == {"mode": "read-only", "source": "delegation"}


async def test_a_mode_that_does_not_exist_is_refused_and_not_logged(
    policy: SandboxPolicy, agent: Any
) -> None:
    before = agent.session.seq
    with pytest.raises(ValueError, match="'wide'"):
        policy.set_mode(agent.session, "wide")  # type: ignore[arg-type]
    assert agent.session.seq == before


async def test_an_unknown_mode_in_a_log_is_an_error_that_names_the_event(
    policy: SandboxPolicy, agent: Any
) -> None:
    agent.session.append(SANDBOX_MODE, {"mode": "wide"})
    with pytest.raises(ValueError, match=r"event 1 names the sandbox mode 'wide'"):
        policy.resolve(agent.session)


async def test_the_root_is_the_canonical_directory_of_the_session(
    root: Context, policy: SandboxPolicy, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    session = root.require(SessionStore).create("s2", meta={"cwd": str(tmp_path / "link")})
    resolved = policy.resolve(session)
    assert resolved.workspace_root == tmp_path / "real"
    assert resolved.session_id == "s2"


async def test_writable_roots_follow_the_mode(policy: SandboxPolicy, agent: Any) -> None:
    resolved = policy.resolve(agent.session)
    assert resolved.writable_roots == (resolved.workspace_root, resolved.temp_dir)
    assert policy.resolve(agent.session, "read-only").writable_roots == ()


async def test_each_session_has_a_private_folder_that_goes_with_the_plugin(
    root: Context, policy: SandboxPolicy, agent: Any
) -> None:
    first, other = policy.temp_dir(agent.session.id), policy.temp_dir("../escape")  # type: ignore[arg-type]
    assert first == policy.resolve(agent.session).temp_dir == policy.temp_dir(agent.session.id)
    assert len({first, other, policy.temp_dir()}) == 3
    assert other.parent == first.parent
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    (first / "file").write_text("x")

    await root.dispose()

    assert not exists(first.parent)


async def test_the_model_is_told_the_policy_in_the_same_words_while_it_stays(
    root: Context, policy: SandboxPolicy, agent: Any
) -> None:
    async def told() -> str:
        from dsh.execution.prompt.service import AssembleContext

        prompt = root.require(SystemPrompt)
        return render_context_snapshot(await prompt.assemble(AssembleContext(agent=agent)))

    first = await told()
    policy.temp_dir("other")  # type: ignore[arg-type]
    assert await told() == first
    assert "workspace-write" in first
    assert str(policy.resolve(agent.session).workspace_root) in first
    assert str(policy.temp_dir().parent) not in first

    policy.set_mode(agent.session, "read-only")
    assert "read-only" in await told() != first


def asking(
    policy: SandboxPolicy, agent: Any, mode: str | None, why: str | None, **extra: Any
) -> EscalationRequest:
    in_force = policy.resolve(agent.session) if agent else policy.resolve()
    facts: dict[str, Any] = {
        "tool_name": "bash",
        "policy": in_force,
        "sandbox_permissions": mode,
        "justification": why,
        "agent": agent,
        "call_id": "c1",
        "signal": None,
    }
    return EscalationRequest(**{**facts, **extra})


async def test_a_call_that_asks_for_nothing_gets_the_policy_in_force(
    policy: SandboxPolicy, agent: Any
) -> None:
    request = asking(policy, agent, None, None)
    assert await policy.escalate(request) is request.policy


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("danger-full-access", None),
        (None, "why"),
        ("danger-full-access", "  "),
        (" ", "why"),
        ("workspace-write", "not wider than the mode in force"),
        ("read-only", "narrower"),
        ("wide", "no such mode"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_without_asking(
    root: Context, policy: SandboxPolicy, agent: Any, mode: str | None, why: str | None
) -> None:
    asked: list[object] = []
    root.on(APPROVAL_REQUEST, lambda request, _: asked.append(request) or "allowed-once")
    before = agent.session.seq
    with pytest.raises(EscalationRefused) as caught:
        await policy.escalate(asking(policy, agent, mode, why))
    assert (caught.value.outcome, asked, agent.session.seq) == ("invalid", [], before)


@pytest.mark.parametrize("mode", ["workspace-write", "danger-full-access"])
async def test_a_grant_widens_one_call_and_nothing_else(
    root: Context, policy: SandboxPolicy, agent: Any, mode: SandboxMode
) -> None:
    policy.set_mode(agent.session, "read-only")
    reasons: list[str | None] = []
    root.on(APPROVAL_REQUEST, lambda request, _: reasons.append(request.reason) or "allowed-once")

    granted = await policy.escalate(asking(policy, agent, mode, "to install it"))

    assert granted.mode == mode
    assert granted.workspace_root == policy.resolve(agent.session).workspace_root
    assert policy.resolve(agent.session).mode == "read-only"
    assert reasons == [f"{mode} for this call: to install it"]


@pytest.mark.parametrize("outcome", ["rejected", "cancelled", "unavailable"])
async def test_each_refusal_has_a_text_of_its_own(
    root: Context, policy: SandboxPolicy, agent: Any, outcome: str
) -> None:
    root.on(APPROVAL_REQUEST, lambda *_: outcome)
    with pytest.raises(EscalationRefused) as caught:
        await policy.escalate(asking(policy, agent, "danger-full-access", "why"))
    assert caught.value.outcome == outcome
    others = {"rejected": "rejected", "cancelled": "cancelled", "unavailable": "nobody"}
    assert others[outcome] in caught.value.message


async def test_nobody_to_ask_for_refuses(policy: SandboxPolicy) -> None:
    with pytest.raises(EscalationRefused) as caught:
        await policy.escalate(asking(policy, None, "danger-full-access", "why"))
    assert caught.value.outcome == "unavailable"


async def test_an_abort_after_the_grant_takes_it_back(
    root: Context, policy: SandboxPolicy, agent: Any
) -> None:
    controller = AbortController()

    def grant_and_abort(*_: object) -> str:
        controller.abort("stop")
        return "allowed-once"

    root.on(APPROVAL_REQUEST, grant_and_abort)
    request = asking(policy, agent, "danger-full-access", "why", signal=controller.signal)
    with pytest.raises(EscalationRefused) as caught:
        await policy.escalate(request)
    assert caught.value.outcome == "cancelled"
