"""Running programs of the model's: the seam; see `dsh.capability.code_runtime.service`."""

from __future__ import annotations

from dsh.capability.code_runtime.service import (
    CODE_ERROR_KINDS,
    Binding,
    BindingError,
    BindingNamespace,
    CodeError,
    CodeErrorKind,
    CodeResult,
    CodeRun,
    CodeRuntime,
    CodeRuntimeClosed,
    CodeRuntimeError,
    InvalidBindings,
)

__all__ = [
    "CODE_ERROR_KINDS",
    "Binding",
    "BindingError",
    "BindingNamespace",
    "CodeError",
    "CodeErrorKind",
    "CodeResult",
    "CodeRun",
    "CodeRuntime",
    "CodeRuntimeClosed",
    "CodeRuntimeError",
    "InvalidBindings",
]
