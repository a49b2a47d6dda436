"""The functions of dsh as a program sees them."""

from __future__ import annotations

from .values import NotJson, TooManyValues, encode, to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Any, TypeAlias

    from .channel import Channel
    from .drivers import Driver

    Function: TypeAlias = Callable[..., Awaitable[Any]]


class Namespace:
    """Functions by attribute or by subscript."""

    def __init__(self, name: str, functions: dict[str, Function]) -> None:
        self.__name, self.__functions = name, functions

    def __getattr__(self, name: str) -> Function:
        try:
            return self.__functions[name]
        except KeyError:
            raise AttributeError(self.__missing(name)) from None

    def __getitem__(self, name: str) -> Function:
        try:
            return self.__functions[name]
        except KeyError:
            raise KeyError(self.__missing(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.__functions)

    def __contains__(self, name: object) -> bool:
        return name in self.__functions

    def __dir__(self) -> list[str]:
        return list(self.__functions)

    def __repr__(self) -> str:
        return f"<{self.__name}: {', '.join(self.__functions)}>"

    def __missing(self, name: object) -> str:
        return f"{self.__name} has no {name!r}; it has {', '.join(self.__functions) or 'nothing'}"


class Calls:
    """Makes the functions, and gives each call a number of its own."""

    def __init__(self, channel: Channel, driver: Driver, max_bytes: int) -> None:
        self._channel, self._driver, self._max_bytes = channel, driver, max_bytes
        self._last_id = 0

    def globals_of(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """Return the globals that a namespace adds."""
        name, made = namespace["global"], {}
        fail: Callable[[str, str], Exception] = _plain_failure
        if (error := namespace.get("errorClass")) is not None:
            kind, fail = _error_class(error["name"], error["memberNameProperty"])
            made[error["name"]] = kind
        functions = {each: self._function(name, each, fail) for each in namespace["names"]}
        return {**made, name: Namespace(name, functions)}

    def _function(
        self, namespace: str, name: str, fail: Callable[[str, str], Exception]
    ) -> Function:
        async def call(arguments: Any = None, /, **named: Any) -> Any:
            if named:
                arguments = {**(arguments or {}), **named}
            reply = await self._call(namespace, name, {} if arguments is None else arguments)
            if reply["ok"]:
                return reply["value"]
            raise fail(name, reply["message"])

        call.__name__ = call.__qualname__ = name
        return call

    async def _call(self, namespace: str, name: str, arguments: Any) -> dict[str, Any]:
        try:
            args = encode(arguments)
        except TooManyValues as error:
            return _refused(f"the arguments are too much: {error}")
        except NotJson as error:
            return _refused(f"the arguments are not lossless JSON: {error}")
        if len(args) > self._max_bytes:
            return _refused(f"the arguments take more than {self._max_bytes} bytes")
        self._last_id += 1
        frame = {"type": "call", "id": self._last_id, "global": namespace, "name": name}
        self._channel.send_line(to_bytes(frame)[:-1] + b',"args":' + args + b"}")
        return await self._driver.reply(self._last_id)


def _refused(message: str) -> dict[str, Any]:
    return {"ok": False, "message": message}


def _plain_failure(name: str, message: str) -> Exception:
    return RuntimeError(f"{name}: {message}")


def _error_class(
    class_name: str, member_property: str
) -> tuple[type[Exception], Callable[[str, str], Exception]]:
    """Return an exception class, and what makes its instances."""
    kind: Any = type(class_name, (Exception,), {"__module__": "builtins", "message": ""})

    def fail(name: str, message: str) -> Exception:
        error: Exception = kind(message)
        error.message = message  # type: ignore[attr-defined]  # the class has it, see above
        setattr(error, member_property, name)
        return error

    return kind, fail
