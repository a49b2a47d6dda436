"""Programs in Python, each in an interpreter of its own: row ``code-runtime``.

Every profile has this row and most never run a program, so nothing of it is loaded beforehand: not
even its config, where the row has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh.capability.code_runtime.service import CodeResult, CodeRun, CodeRuntime, CodeRuntimeClosed
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import InactiveEffect

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.capability.code_runtime.config import CodeRuntimeConfig
    from dsh.kernel import Context


class _Config:
    """Validates by the model of `dsh.capability.code_runtime.config`, if there is anything to."""

    @staticmethod
    def validate(raw: Any) -> CodeRuntimeConfig | None:
        if not raw:
            return None
        from dsh.capability.code_runtime.config import CodeRuntimeConfig

        return CodeRuntimeConfig.model_validate(raw)


class ProcessCodeRuntime(CodeRuntime):
    """Starts an interpreter for each program and ends it, and all it started, afterwards."""

    inject = (SubprocessRuntime,)
    Config = _Config
    language = "python"
    isolation = "process"

    def __init__(self, ctx: Context, config: CodeRuntimeConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config
        self._closed = False

    def start(self) -> Callable[[], None]:
        """Nothing runs yet; unloading ends all programs, and then no more can be run."""
        return self._close

    async def run(self, request: CodeRun) -> CodeResult:
        """See `CodeRuntime`."""
        if self._closed:
            raise CodeRuntimeClosed
        from dsh.capability.code_runtime.config import CodeRuntimeConfig
        from dsh.capability.code_runtime.running import run

        try:
            return await run(self.ctx, request, self._config or CodeRuntimeConfig())
        except InactiveEffect as error:
            raise CodeRuntimeClosed from error

    def _close(self) -> None:
        self._closed = True


plugin = ProcessCodeRuntime
