from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import field
from typing import ClassVar, Generic, TypeVar

import pytest

from dsh.base.values import changed, record, value

T = TypeVar("T")


@value
class Point:
    x: int
    y: int = 2
    kind: ClassVar[str] = "point"


@value(kw_only=True)
class Named(Point):
    name: str
    tags: list[str] = field(default_factory=list)


@record
class Count:
    n: int = 0


def test_a_class_shows_its_fields_as_its_signature_before_and_after_the_first_instance() -> None:
    @value
    class Fresh:
        x: int
        y: int = 2

    class Own(Fresh):
        def __init__(self, only: int) -> None:
            super().__init__(only)

    before = str(inspect.signature(Fresh))
    Fresh(1)

    assert before == str(inspect.signature(Fresh)) == "(x, y=2)"
    assert list(inspect.signature(Own).parameters) == ["only"]
    assert Own(3).x == 3


def test_a_subclass_made_before_the_first_instance_of_its_base_sets_both_their_fields() -> None:
    @value
    class Base:
        x: int

    @value
    class Wider(Base):
        y: int

    class Plain(Base):
        pass

    assert (Plain(1).x, Wider(1, 2).y, Wider(1, 2).x, Base(4).x) == (1, 2, 1, 4)


def test_fields_are_given_in_order_and_by_name() -> None:
    assert (Point(1).x, Point(1).y, Point(y=5, x=4).y) == (1, 2, 5)
    assert Named(1, name="a").name == "a"
    with pytest.raises(TypeError):
        Named(1, 2, "a")  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_values_compare_and_hash_by_content_and_class() -> None:
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1))
    assert Point(1) != Point(2)
    assert Point(1) != Count(1)  # type: ignore[comparison-overlap]
    assert Named(1, name="a") != Point(1)


def test_a_value_refuses_changes_and_has_no_other_attributes() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="does not change"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 3  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_a_record_changes_and_has_no_hash() -> None:
    count = Count()
    count.n += 1
    assert count == Count(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)
    with pytest.raises(AttributeError):
        count.m = 1  # type: ignore[attr-defined]


def test_a_default_factory_makes_a_fresh_value_each_time() -> None:
    one, two = Named(1, name="a"), Named(1, name="a")
    one.tags.append("x")
    assert two.tags == []
    assert Named(1, name="a", tags=["y"]).tags == ["y"]


def test_identity_may_be_asked_for() -> None:
    @value(eq=False)
    class Token:
        n: int

    assert Token(1) != Token(1)
    assert len({Token(1), Token(1)}) == 2


def test_it_prints_as_a_call_and_matches_by_position() -> None:
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, name='a', tags=[])"
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)


def test_class_variables_are_no_fields() -> None:
    assert Point.kind == "point"
    assert "kind" not in repr(Point(1))


def test_a_copy_differs_in_the_named_fields_alone() -> None:
    assert changed(Named(1, name="a"), name="b", y=9) == Named(1, 9, name="b")
    with pytest.raises(TypeError):
        changed(Point(1), z=3)


def test_methods_post_init_generics_and_abstract_bases_work() -> None:
    class Shape(ABC):
        __slots__ = ()

        @abstractmethod
        def area(self) -> int: ...

    @value
    class Box(Shape, Generic[T]):
        side: int
        label: T

        def __post_init__(self) -> None:
            if self.side < 0:
                raise ValueError(self.side)

        def area(self) -> int:
            return self.side**2

    assert Box[str](3, "a").area() == 9
    with pytest.raises(ValueError, match="-1"):
        Box(-1, "a")


def test_own_methods_outrank_the_shared_ones() -> None:
    @value
    class Secret:
        text: str

        def __repr__(self) -> str:
            return "Secret(...)"

    assert repr(Secret("x")) == "Secret(...)"


def test_a_field_may_be_left_out_of_printing_and_comparing() -> None:
    @value
    class Login:
        user: str
        password: str = field(repr=False, compare=False)

    assert repr(Login("ada", "x")) == "Login(user='ada')".replace("Login", Login.__qualname__)
    assert Login("ada", "x") == Login("ada", "y")
    assert hash(Login("ada", "x")) == hash(Login("ada", "y"))
