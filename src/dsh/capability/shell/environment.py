"""The ``DSH_*`` variables that commands get to see, by contributor."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.capability.shell.service import ShellEnv, ShellEnvContributor, ShellVariable
from dsh.loader.environment import LaunchEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.execution.tools.service import ToolExecution
    from dsh.kernel import Context, Effect

_NAME = re.compile(r"DSH_[A-Z][A-Z0-9_]*")
_BUILT_IN = "built-in"


class RegisteredShellEnv(ShellEnv):
    """Collects the variables of every contributor for each call."""

    def __init__(self, ctx: Context, config: object = None) -> None:
        super().__init__(ctx, config)
        self._contributors: dict[str, ShellEnvContributor] = {}
        self._built_in = ShellEnvContributor(
            _BUILT_IN,
            {
                "DSH_HOME": "folder of dsh's settings and sessions",
                "DSH_SHELL": "1 in every command that dsh runs",
                "DSH_SESSION_ID": "id of the session that runs the command",
            },
            self._resolve_built_in,
        )

    def register(self, contributor: ShellEnvContributor) -> Effect:
        """See `ShellEnv`."""
        self._check(contributor)
        return self.caller.effect(
            lambda: self._insert(contributor), f"shell_env.register({contributor.name!r})"
        )

    def collect(self, execution: ToolExecution) -> dict[str, str]:
        """See `ShellEnv`."""
        collected: dict[str, str] = {}
        for contributor in (self._built_in, *self._contributors.values()):
            for name, value in contributor.resolve(execution).items():
                if name not in contributor.variables:
                    raise ValueError(f"{contributor.name!r} does not declare {name!r}")
                if not isinstance(value, str):
                    raise ValueError(f"{contributor.name!r} gives {name!r} a value that is no text")  # noqa: TRY004 - one error for one rule
                collected[name] = value
        return collected

    def all(self) -> tuple[ShellVariable, ...]:
        """See `ShellEnv`."""
        return tuple(
            ShellVariable(name, description, contributor.name)
            for contributor in (self._built_in, *self._contributors.values())
            for name, description in contributor.variables.items()
        )

    def _check(self, contributor: ShellEnvContributor) -> None:
        if contributor.name in self._contributors or contributor.name == _BUILT_IN:
            raise ValueError(f"the contributor name {contributor.name!r} is taken")
        owners = {variable.name: variable.contributor for variable in self.all()}
        for name in contributor.variables:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no variable name: it must look like DSH_NAME")
            if name in owners:
                raise ValueError(f"the variable {name!r} belongs to {owners[name]!r}")

    def _insert(self, contributor: ShellEnvContributor) -> Callable[[], object]:
        self._check(contributor)
        self._contributors[contributor.name] = contributor
        return lambda: self._contributors.pop(contributor.name, None)

    def _resolve_built_in(self, execution: ToolExecution) -> dict[str, str]:
        values = {"DSH_HOME": self._home(), "DSH_SHELL": "1"}
        if execution.agent is not None:
            values["DSH_SESSION_ID"] = execution.agent.session.id
        return values

    def _home(self) -> str:
        launch = self.ctx.get(LaunchEnvironment)
        home = launch.value("DSH_HOME") if launch else os.environ.get("DSH_HOME")
        return home or str(Path.home() / ".dsh")


plugin = RegisteredShellEnv
