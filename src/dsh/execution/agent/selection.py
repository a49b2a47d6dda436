"""Let a policy choose an agent's model, so that prompt and request never disagree."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from dsh.base.values import record
from dsh.execution.agent.events import AGENT_REQUEST, AgentRequest
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE, PromptAssembling

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.control.default_model.service import ModelSelection
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.kernel import Context, Next
    from dsh.model.llm.service import LlmCallConfig


@record
class SelectionRef:
    """A choice that may change at any time, and the one that the last prompt was made for."""

    current: ModelSelection | None = None
    """What the next prompt is assembled for; ``None`` leaves the agent's own options."""
    assembled: ModelSelection | None = field(default=None, init=False)
    """What the running step uses, until its end."""


def install_model_selection(agent_ctx: Context, ref: SelectionRef) -> Callable[[], None]:
    """Make an agent follow ``ref`` from its next prompt on.

    A switch in the middle of a step takes effect at the next assembly.

    Args:
        agent_ctx: The agent's own context; the listeners go with it.
        ref: Where the choice is read, at each assembly.

    Returns:
        Ends it.
    """

    async def assemble(event: PromptAssembling, following: Next[PromptAssembly]) -> PromptAssembly:
        chosen = ref.current
        assembly = await following()
        ref.assembled = chosen
        if chosen is not None:
            assembly.variables["provider"] = chosen.provider
            assembly.variables["model"] = chosen.model
        return assembly

    async def request(event: AgentRequest, following: Next[LlmCallConfig]) -> LlmCallConfig:
        config = await following()
        chosen = ref.assembled
        if chosen is None:
            return config
        routed: dict[str, Any] = {**config, "provider": chosen.provider, "model": chosen.model}
        routed.pop("reasoningEffort", None)
        if chosen.reasoning_effort is not None:
            routed["reasoningEffort"] = chosen.reasoning_effort
        return cast("LlmCallConfig", routed)  # a config with its route exchanged

    effects = (
        agent_ctx.on(SYSTEM_PROMPT_ASSEMBLE, assemble),
        agent_ctx.on(AGENT_REQUEST, request),
    )

    def end() -> None:
        for effect in effects:
            effect.dispose()

    return end
