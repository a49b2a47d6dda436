"""Upstream's npm names of plugins: those that we ship, and those that we do not have."""

from __future__ import annotations

from typing import Final

GROUP: Final = "cordis:group"
"""The builtin whose config is a list of rows."""

SCOPE: Final = "@deepseek-ai/"
"""What the names of all upstream plugins begin with."""

ALIASES: Final[dict[str, str]] = {
    f"{SCOPE}{npm}": ours
    for npm, ours in {
        "cordis-plugin-group": GROUP,
        "cordis-plugin-hmr": "dsh.loader.hmr.plugin",
        "cordis-plugin-include": "cordis:include",
        "cordis-plugin-logger-console": "dsh.kernel.logger_console",
        "cordis-plugin-timer": "dsh.kernel.timer:Timer",
        "dsh-agent": "dsh.execution.agent.registry",
        "dsh-agent-default-model": "dsh.control.default_model.plugin",
        "dsh-agent-execution": "dsh.execution.agent_execution",
        "dsh-agent-loop": "dsh.execution.loop.plugin",
        "dsh-agent-tool-presentation": "dsh.execution.tools.presentation",
        "dsh-attachment-local": "dsh.capability.attachments.local",
        "dsh-bash-sandbox": "dsh.capability.shell.sandboxed",
        "dsh-code-runtime-python": "dsh.capability.code_runtime.process",
        "dsh-code-runtime-worker-thread": "dsh.capability.code_runtime.process",
        "dsh-command-feedback": "dsh.state.feedback.command",
        "dsh-commands": "dsh.control.commands.runtime",
        "dsh-credentials-local": "dsh.state.credentials.local",
        "dsh-fs-observation-policy": "dsh.capability.fs.observation",
        "dsh-fs-sandbox": "dsh.capability.fs.sandboxed",
        "dsh-headless": "dsh.product.headless.runner",
        "dsh-headless/startup": "dsh.product.headless.startup",
        "dsh-llm": "dsh.model.llm.runtime",
        "dsh-llm-deepseek": "dsh.model.adapters.deepseek",
        "dsh-llm-retry": "dsh.control.retry.policy",
        "dsh-message-feedback": "dsh.state.feedback.stored",
        "dsh-permission-presets": "dsh.control.permissions.presets",
        "dsh-repeat-tool-reminder": "dsh.control.reminder.policy",
        "dsh-sandbox-local": "dsh.capability.sandbox.local",
        "dsh-sandbox-policy": "dsh.capability.sandbox.policy",
        "dsh-session": "dsh.state.session.store",
        "dsh-session-checkpoint-policy": "dsh.control.checkpoint.policy",
        "dsh-session-log-export": "dsh.state.log_export.command",
        "dsh-session-persistence-jsonl": "dsh.state.persistence.jsonl",
        "dsh-session-persistence-sqlite": "dsh.state.persistence.sqlite",
        "dsh-session-projection": "dsh.state.projections.registry",
        "dsh-session-projection-cache": "dsh.state.projections.cache",
        "dsh-session-query-sqlite": "dsh.state.query.sqlite",
        "dsh-session-reference": "dsh.context.session_reference.resolver",
        "dsh-session-stats": "dsh.state.projections.stats",
        "dsh-session-telemetry-otel": "dsh.state.telemetry.otel",
        "dsh-session-title": "dsh.state.titles.keeper",
        "dsh-session-title-all-prompts-llm": "dsh.state.titles.all_prompts_llm",
        "dsh-session-title-first-prompt-llm": "dsh.state.titles.first_prompt_llm",
        "dsh-settings-file": "dsh.state.settings.file",
        "dsh-shell-env": "dsh.capability.shell.environment",
        "dsh-storage": "dsh.state.storage.hub",
        "dsh-storage-domain": "dsh.state.storage.domain.facility",
        "dsh-storage-json": "dsh.state.storage.json_files",
        "dsh-storage-sqlite": "dsh.state.storage.sqlite",
        "dsh-subprocess-local": "dsh.capability.subprocess.local",
        "dsh-system-prompt": "dsh.execution.prompt.assembly",
        "dsh-tool-ask-user": "dsh.control.questions.tool_ask_user",
        "dsh-tool-bash": "dsh.capability.shell.tool_bash",
        "dsh-tool-call-timeout-policy": "dsh.control.timeouts.policy",
        "dsh-tool-fs": "dsh.capability.fs.tools",
        "dsh-tool-fs-search": "dsh.capability.search.tools",
        "dsh-tool-session-query": "dsh.capability.session_query.tools",
        "dsh-tool-todo": "dsh.capability.todo.tool_todo",
        "dsh-tools": "dsh.execution.tools.runtime",
        "dsh-user-approval": "dsh.control.approval.policy",
        "dsh-user-questions": "dsh.control.questions.runtime",
    }.items()
}
"""npm specifier -> our import path."""

_LATER: Final = "not built yet"
_BROWSER: Final = "a part of the browser app, which is not built yet"
_WINDOWS: Final = "PowerShell is not supported; on Windows dsh runs inside WSL"
_SCRIPT: Final = "it carries JavaScript types, which have no counterpart here"
_OURSELVES: Final = "the loader is part of dsh itself and takes no row"

_UNSERVED: Final[dict[str, str]] = {
    _LATER: """
        acp agent-instructions agent-presets agent-spine-demo
        bash-local
        command-compact command-goal compaction-basic
        compaction-tool-result-pruner cordis-host-runner e2b
        file-reference-local fs fs-e2b fs-local goal goal-round-driver invariants jobs jobs-local
        llm-pi-ai llm-replay lsp lsp-stdio mcp-client persona
        plan-mode sandbox schedule sdk-jsonrpc-server
        shell skill skill-badge skill-filesystem spill-local spill-policy
        subagent subagent-acp subagent-claude-code subagent-codex subagent-dsh-sdk
        subagent-fork-in-process subagent-spawn-in-process subprocess subprocess-e2b terminal
        terminal-bash time-context token-meter tool-agent-team tool-bash-persistent
        tool-cordis tool-goal tool-jobs tool-lsp tool-ralph tool-skill
        tool-str-replace-editor tool-subagent tool-subagent-control
        tool-subagent-control/list-agents tool-subagent-report tool-terminal tool-web
        tool-workflow web web-fetch-http web-search-deepseek web-search-exa
        web-search-perplexity workflow-worker-thread workspace
    """,
    _BROWSER: """
        api-gateway api-remotes client-connection client-hmr client-modules client-runtime
        cordis-client-runner host-apiproxy host-directory-picker-auto host-plugin-inventory
        host-webserver ui-cordis web-app web-app/startup
    """,
    _WINDOWS: "pwsh-local pwsh-sandbox sandbox-windows-acl tool-pwsh tool-pwsh-persistent",
    _SCRIPT: "typert-loader typert-registry",
}

UNSERVED: Final[dict[str, str]] = {
    f"{SCOPE}cordis-plugin-loader": _OURSELVES,
    **{
        f"{SCOPE}dsh-{suffix}": reason
        for reason, suffixes in _UNSERVED.items()
        for suffix in suffixes.split()
    },
}
"""npm specifier -> why we have nothing for it."""


def canonical(name: str) -> str:
    """Return our spelling of a plugin name; a name that is ours already stays."""
    return ALIASES.get(name, name)


def same_plugin(left: str, right: str) -> bool:
    """Tell whether two names mean the same plugin, whatever spelling each uses."""
    return _normal(left) == _normal(right)


def why_unserved(name: str) -> str | None:
    """Return why we do not have a plugin of upstream; None for all other names."""
    if name in UNSERVED or not name.startswith(SCOPE):
        return UNSERVED.get(name)
    # The browser's own plugins are many, and a row of one is never mounted by the host.
    return _BROWSER if name.startswith((f"{SCOPE}dsh-ui-", f"{SCOPE}dsh-client-")) else None


def _normal(name: str) -> str:
    return canonical(name).removesuffix(":apply").removesuffix(":plugin")
