"""How the tools of each scope reach the model: which of them, and what else it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.base.changes import Changes, loop_time
from dsh.execution.prompt.service import AssembleContext, PromptSection, SystemPrompt
from dsh.execution.tools.holds import SWAP_WAIT_S
from dsh.execution.tools.registry import Registered
from dsh.execution.tools.service import RESERVED_TOOL_NAME
from dsh.kernel import INTERNAL_SERVICE

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.capability.code_runtime.service import CodeRuntime
    from dsh.execution.tools.code.flavours import Flavour
    from dsh.execution.tools.registry import ToolLayers
    from dsh.execution.tools.service import PresentationMode, ToolInput, ToolRuntime
    from dsh.kernel import Context

_SDK_ORDER = 150
_CODE_ONLY_ORDER = 99
_MOST_KEPT = 32
"""Sets of tools whose declarations are kept, since every step of an agent asks for them."""

_CODE_ONLY = f"""\
`{RESERVED_TOOL_NAME}` is the only tool that you can call directly. Every other tool is a function \
of the programs that it runs; their declarations are below."""


class CodeMode:
    """Adds ``run_code`` where it is wanted. What it takes is loaded when somebody asks for it."""

    def __init__(
        self,
        ctx: Context,
        tools: ToolRuntime,
        layers: ToolLayers,
        default: PresentationMode,
        most_bodies: int,
    ) -> None:
        self._ctx, self._tools, self._layers = ctx, tools, layers
        self._default, self._most_bodies = default, most_bodies
        self._built: tuple[Flavour, Registered] | None = None
        self._declared: dict[tuple[object, ...], str] = {}

    def contribute(self) -> None:
        """Add the sections of the prompt; they are empty where tools are presented natively."""
        prompt = self._ctx.require(SystemPrompt)
        prompt.section(PromptSection("tools:code-only", _CODE_ONLY_ORDER, self._code_only))
        prompt.section(PromptSection("tools:sdk", _SDK_ORDER, self._sdk))

    def forget(self) -> None:
        """Drop what was written of tools that may be gone now."""
        self._declared.clear()

    def of(self, scope: object | None) -> PresentationMode:
        """The mode of a scope."""
        return self._layers.mode(scope, self._default)

    def transport(self, scope: object | None) -> Registered | None:
        """``run_code``, where a scope has it."""
        if self.of(scope) == "native":
            return None
        flavour = self._flavour(strict=False)
        if self._built is None or self._built[0] is not flavour:
            from dsh.execution.tools.code.run_code import make_run_code

            definition = make_run_code(
                self._ctx,
                self._tools,
                flavour,
                visible=self._names,
                most_bodies=self._most_bodies,
            )
            self._built = flavour, Registered(definition, self._ctx)
        return self._built[1]

    async def settle(self, scope: object | None, signal: AbortSignal | None) -> None:
        """Wait for a code runtime that is being swapped, where a scope needs one.

        Raises:
            AbortedError: by the signal.
        """
        if self.of(scope) == "native" or self._runtime() is not None:
            return
        deadline, changes = loop_time() + SWAP_WAIT_S, Changes()
        following = self._ctx.on(INTERNAL_SERVICE, lambda _: changes.announce(), everywhere=True)
        try:
            while self._runtime() is None and (left := deadline - loop_time()) > 0:
                if signal is not None:
                    signal.throw_if_aborted()
                await changes.next(left, signal)
        finally:
            following.dispose()

    def is_collapsed(self, input: ToolInput) -> bool:
        """Whether a call takes a way that its agent does not have."""
        return (
            input.parent is None
            and input.name != RESERVED_TOOL_NAME
            and self.of(input.agent) == "code"
            and self._layers.get(input.name, input.agent) is not None
        )

    def _names(self, scope: object | None) -> list[str]:
        return [name for name in self._layers.visible(scope) if name != RESERVED_TOOL_NAME]

    def _code_only(self, context: AssembleContext) -> str:
        return _CODE_ONLY if self.of(context.scope) == "code" else ""

    def _sdk(self, context: AssembleContext) -> str:
        if self.of(context.scope) == "native":
            return ""
        flavour = self._flavour(strict=True)
        tools = list(self._layers.visible(context.scope).values())
        key = (flavour.language, *map(id, tools))
        if (text := self._declared.get(key)) is None:
            text = f"{flavour.instructions}\n\n{flavour.render(tools)}"
            if len(self._declared) >= _MOST_KEPT:
                self._declared.clear()
            self._declared[key] = text
        return text

    def _flavour(self, *, strict: bool) -> Flavour:
        """How programs are described.

        Raises:
            NoCodeRuntime: ``strict``, and nothing can run them.
            UnknownCodeLanguage: the runtime takes programs that we cannot describe.
        """
        from dsh.execution.tools.code.errors import NoCodeRuntime
        from dsh.execution.tools.code.flavours import flavour_of

        runtime = self._runtime()
        if runtime is None and strict:
            raise NoCodeRuntime
        return flavour_of(None if runtime is None else runtime.language)

    def _runtime(self) -> CodeRuntime | None:
        from dsh.capability.code_runtime.service import CodeRuntime

        return self._ctx.get(CodeRuntime)
