"""What can go wrong in Code Mode."""

from __future__ import annotations

from collections.abc import Sequence

from dsh.base.errors import DshError
from dsh.execution.prompt.service import PromptError
from dsh.execution.tools.service import RESERVED_TOOL_NAME, ToolNotFound


class CollapsedTool(ToolNotFound):
    """A tool that is only reachable from programs was called directly."""

    def __init__(self, tool: str) -> None:
        DshError.__init__(
            self,
            f"unknown tool {tool!r}: only {RESERVED_TOOL_NAME} can be called directly here. call "
            f"this tool from a program that {RESERVED_TOOL_NAME} runs: "
            f"await tools[{tool!r}]({{...}})",
        )
        self.tool, self.nearest = tool, None


class NoCodeRuntime(PromptError):
    """Tools are to be presented as code, and nothing can run a program."""

    code = "NO_CODE_RUNTIME"

    def __init__(self) -> None:
        super().__init__(
            "tools are presented as code, but no code runtime is mounted; add the row "
            "'code-runtime', or set the mode of the row 'tools' to native"
        )


class UnknownCodeLanguage(PromptError):
    """The mounted runtime runs a language in which the tools cannot be declared."""

    code = "UNKNOWN_CODE_LANGUAGE"

    def __init__(self, language: str, known: Sequence[str]) -> None:
        super().__init__(
            f"the code runtime runs {language!r}, and tools can be declared in "
            f"{', '.join(known)} only"
        )
        self.language = language


class CodeRunFailedError(DshError):
    """A program has no result.

    Attributes:
        kind: Why; one of the kinds of `dsh.capability.code_runtime.service`.
        logs: What it printed before.
    """

    code = "CODE_RUN_FAILED"

    def __init__(self, kind: str, message: str, logs: Sequence[str]) -> None:
        printed = "\n".join(logs)
        before = f"\n\nIt had printed:\n{printed}" if printed else ""
        super().__init__(f"the program failed ({kind}): {message}{before}")
        self.kind, self.reason, self.logs = kind, message, tuple(logs)


class NestedCallFailed(DshError):
    """A call that a program made has no value; the program reads the message."""

    code = "NESTED_CALL_FAILED"


class ProgramEnded(DshError):
    """A call came, or waited for its turn, when its program was over."""

    code = "PROGRAM_ENDED"

    def __init__(self) -> None:
        super().__init__("the program has ended; this call was not made")
