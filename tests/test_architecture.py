"""What import-linter cannot say: definitions import definitions, packages load no provider."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from importlib.resources import files

import grimp
import pytest

import dsh

VOCABULARY = {
    "dsh.execution.tools.contexts",
    "dsh.execution.tools.errors",
    "dsh.execution.tools.raw",
    "dsh.model.chunks",
    "dsh.model.failures",
    "dsh.model.messages",
    "dsh.product.headless.options",
    "dsh.state.session.vocabulary",
}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("dsh", exclude_type_checking_imports=True)


def is_definition(module: str) -> bool:
    return module.rpartition(".")[2] in {"service", "events"}


def definitions() -> list[str]:
    return sorted(
        module
        for module in graph().modules
        if is_definition(module) and not module.startswith(("dsh.base.", "dsh.kernel."))
    )


def allowed_in_definition(module: str) -> bool:
    floor = module.startswith(("dsh.base", "dsh.kernel"))
    return floor or module in VOCABULARY or is_definition(module)


@pytest.mark.parametrize("module", definitions())
def test_a_definition_imports_only_base_kernel_vocabulary_and_definitions(module: str) -> None:
    imported = graph().find_modules_directly_imported_by(module)
    assert [each for each in sorted(imported) if not allowed_in_definition(each)] == []


def rows() -> set[str]:
    """The plugin modules that the shipped bundles name."""
    bundles = files("dsh.product.bundles")
    texts = [each.read_text() for each in bundles.iterdir() if each.name.endswith(".yml")]
    return {name for text in texts for name in re.findall(r"name: (dsh\.[\w.]+)", text)}


def seam_packages() -> list[str]:
    return sorted({module.rpartition(".")[0] for module in definitions()} - rows())


@pytest.mark.parametrize("package", seam_packages())
def test_a_seam_package_loads_no_provider(package: str) -> None:
    assert graph().find_upstream_modules(package) & rows() == set()


def public_packages() -> list[str]:
    found = [info.name for info in pkgutil.walk_packages(dsh.__path__, "dsh.") if info.ispkg]
    return ["dsh", *found]


@pytest.mark.parametrize("package", public_packages())
def test_a_public_package_has_all_that_it_lists(package: str) -> None:
    module = importlib.import_module(package)
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported)
    assert [name for name in exported if not hasattr(module, name)] == []
