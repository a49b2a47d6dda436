"""Config validation by each kind of ``Config``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest
from pydantic import BaseModel, PositiveInt, TypeAdapter, field_validator

from dsh import kernel
from dsh.kernel import Context, ValidationError, plugin, validate_config


class Model(BaseModel):
    count: PositiveInt
    inner: dict[str, int] = {}


@dataclass
class Plain:
    count: int
    names: list[str] = field(default_factory=list)


class Validator:
    @staticmethod
    def validate(value: int) -> int:
        if value < 0:
            raise ValueError("is negative")
        return value + 1


def test_without_config_the_value_passes_untouched() -> None:
    value = object()
    assert validate_config(None, value) is value


def test_pydantic_model_gives_its_instance_and_names_each_issue() -> None:
    assert validate_config(Model, {"count": 1}) == Model(count=1)
    with pytest.raises(ValidationError) as caught:
        validate_config(Model, {"count": 0, "inner": {"a": "x"}})
    assert [path for _, path in caught.value.issues] == ["count", "inner.a"]
    assert str(caught.value).startswith("invalid config:\n  - ")
    assert "(at inner.a)" in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.code == "VALIDATION"


def test_the_words_of_a_models_own_validator_are_kept_as_they_are() -> None:
    class Even(BaseModel):
        count: int

        @field_validator("count")
        @classmethod
        def _is_even(cls, count: int) -> int:
            if count % 2:
                raise ValueError("expected an even number")
            return count

    with pytest.raises(ValidationError) as caught:
        validate_config(Even, {"count": 1})
    assert caught.value.issues == (("expected an even number", "count"),)


def test_no_config_is_an_empty_mapping_for_models() -> None:
    with pytest.raises(ValidationError, match="count"):
        validate_config(Model, None)


def test_type_adapter_is_a_config() -> None:
    assert validate_config(TypeAdapter(list[int]), ["1"]) == [1]
    with pytest.raises(ValidationError, match="at 0"):
        validate_config(TypeAdapter(list[int]), ["x"])


def test_dataclass_is_built_from_its_fields() -> None:
    assert validate_config(Plain, {"count": 1}) == Plain(1, [])
    made = Plain(2)
    assert validate_config(Plain, made) is made
    with pytest.raises(ValidationError) as caught:
        validate_config(Plain, {"cuont": 1})
    assert caught.value.issues == (("unknown field", "cuont"), ("field is required", "count"))
    with pytest.raises(ValidationError, match="expected a mapping, got int"):
        validate_config(Plain, 3)


def test_object_with_validate_decides_itself() -> None:
    assert validate_config(Validator, 1) == 2
    with pytest.raises(ValidationError, match="is negative") as caught:
        validate_config(Validator, -1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_asynchronous_validation_is_refused() -> None:
    class Later:
        @staticmethod
        async def validate(value: int) -> int:
            return value

    with pytest.raises(ValidationError, match="asynchronous validation"):
        validate_config(Later, 1)


def test_config_that_cannot_validate_is_refused() -> None:
    with pytest.raises(ValidationError, match="cannot validate"):
        validate_config(object(), 1)


async def test_body_gets_the_validated_config(root: Context, log: list[object]) -> None:
    await root.plugin(plugin(config=Model)(lambda ctx, config: log.append(config)), {"count": "3"})
    assert log == [Model(count=3)]


def test_kernel_loads_neither_pydantic_nor_anything_outside_base() -> None:
    code = (
        "import sys, dsh.kernel, dsh.kernel.timer\n"
        "heavy = ('pydantic', 'httpx', 'yaml', 'rich')\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in heavy]\n"
        "floors = sorted({m.split('.')[1] for m in sys.modules if m.startswith('dsh.')})\n"
        "print(bad, floors)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] ['base', 'kernel']"


def test_public_names_are_exactly_what_is_visible() -> None:
    names = kernel.__all__
    visible = {
        name
        for name, value in vars(kernel).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert len(set(names)) == len(names)
    assert set(names) == visible
