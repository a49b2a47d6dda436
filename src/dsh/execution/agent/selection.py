"""Let a policy choose an agent's model, so that prompt and request never disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from dsh.base.values import record
from dsh.execution.agent.events import AGENT_REQUEST, AgentRequest
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE, PromptAssembling

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.base.signal import AbortSignal
    from dsh.control.default_model.service import ModelSelection
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.kernel import Context, Next
    from dsh.model.llm.service import LlmCallConfig


@record
class SelectionRef:
    """A choice that may change at any time."""

    current: ModelSelection | None = None
    """What the next prompt is assembled for; ``None`` leaves the agent's own options."""


def install_model_selection(agent_ctx: Context, ref: SelectionRef) -> Callable[[], None]:
    """Make an agent follow ``ref`` from its next prompt on.

    A switch in the middle of a step takes effect at the turn's next assembly. Assemblies that are
    not the turn's own, such as a preview, show the choice and change no request.

    Args:
        agent_ctx: The agent's own context; the listeners go with it.
        ref: Where the choice is read, at each assembly.

    Returns:
        Ends it.
    """
    assembled: WeakKeyDictionary[AbortSignal, ModelSelection | None] = WeakKeyDictionary()
    """What the last prompt of each turn was made for; prompt and requests share its signal."""

    async def assemble(event: PromptAssembling, following: Next[PromptAssembly]) -> PromptAssembly:
        chosen = ref.current
        assembly = await following()
        if event.context.signal is not None:
            assembled[event.context.signal] = chosen
        if chosen is not None:
            assembly.variables["provider"] = chosen.provider
            assembly.variables["model"] = chosen.model
        return assembly

    async def request(event: AgentRequest, following: Next[LlmCallConfig]) -> LlmCallConfig:
        config = await following()
        chosen = assembled.get(event.signal)
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
