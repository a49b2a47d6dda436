from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = [
    "dsh.control.approval",
    "dsh.control.default_model",
    "dsh.execution.prompt",
    "dsh.execution.tools",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_exactly_its_definition_sorted(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__ == sorted(package.__all__, key=_constants_first)
    visible = {
        key
        for key, value in vars(package).items()
        if not key.startswith("_") and key != "annotations" and type(value) is not type(sys)
    }
    assert visible == set(package.__all__)


def _constants_first(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize(
    "module",
    [
        *PACKAGES,
        "dsh.execution.tools.events",
        "dsh.execution.prompt.events",
        "dsh.control.approval.events",
        "dsh.execution.tools.author",
    ],
)
def test_a_definition_loads_no_provider_and_no_pydantic(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "bad = {'pydantic', 'httpx', 'dsh.execution.tools.runtime', 'dsh.execution.tools.pipeline',"
        " 'dsh.execution.prompt.assembly', 'dsh.control.approval.policy'} & set(sys.modules)\n"
        "print(sorted(bad))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
