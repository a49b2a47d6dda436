"""Upstream's npm names of the plugins that we ship, so that its configurations load here."""

from __future__ import annotations

from typing import Final

GROUP: Final = "cordis:group"
"""The builtin whose config is a list of rows."""

_SCOPE: Final = "@deepseek-ai/"

ALIASES: Final[dict[str, str]] = {
    f"{_SCOPE}{npm}": ours
    for npm, ours in {
        "cordis-plugin-group": GROUP,
        "cordis-plugin-include": "cordis:include",
        "cordis-plugin-timer": "dsh.kernel.timer:Timer",
        "dsh-agent": "dsh.execution.agent.registry",
        "dsh-agent-default-model": "dsh.control.default_model.plugin",
        "dsh-agent-loop": "dsh.execution.loop.plugin",
        "dsh-bash-sandbox": "dsh.capability.shell.sandboxed",
        "dsh-fs-observation-policy": "dsh.capability.fs.observation",
        "dsh-fs-sandbox": "dsh.capability.fs.sandboxed",
        "dsh-headless": "dsh.product.headless.runner",
        "dsh-headless/startup": "dsh.product.headless.startup",
        "dsh-llm": "dsh.model.llm.runtime",
        "dsh-llm-deepseek": "dsh.model.adapters.deepseek",
        "dsh-llm-retry": "dsh.control.retry.policy",
        "dsh-sandbox-local": "dsh.capability.sandbox.local",
        "dsh-sandbox-policy": "dsh.capability.sandbox.policy",
        "dsh-session": "dsh.state.session.store",
        "dsh-session-checkpoint-policy": "dsh.control.checkpoint.policy",
        "dsh-session-persistence-jsonl": "dsh.state.persistence.jsonl",
        "dsh-shell-env": "dsh.capability.shell.environment",
        "dsh-subprocess-local": "dsh.capability.subprocess.local",
        "dsh-system-prompt": "dsh.execution.prompt.assembly",
        "dsh-tool-bash": "dsh.capability.shell.tool_bash",
        "dsh-tool-call-timeout-policy": "dsh.control.timeouts.policy",
        "dsh-tool-fs": "dsh.capability.fs.tools",
        "dsh-tool-fs-search": "dsh.capability.search.tools",
        "dsh-tools": "dsh.execution.tools.runtime",
        "dsh-user-approval": "dsh.control.approval.policy",
    }.items()
}
"""npm specifier -> our import path."""


def canonical(name: str) -> str:
    """Return our spelling of a plugin name; a name that is ours already stays."""
    return ALIASES.get(name, name)


def same_plugin(left: str, right: str) -> bool:
    """Tell whether two names mean the same plugin, whatever spelling each uses."""
    return _normal(left) == _normal(right)


def _normal(name: str) -> str:
    return canonical(name).removesuffix(":apply").removesuffix(":plugin")
