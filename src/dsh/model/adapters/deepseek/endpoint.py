"""Where requests go and with which key, resolved anew for each request."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from dsh.base.values import value
from dsh.model.failures import LlmError, unusable_key_problem

__all__ = [
    "BASE_URL_VARIABLE",
    "DEFAULT_KEY_VARIABLE",
    "VENDOR_URL",
    "Endpoint",
    "Lookup",
    "missing_key",
    "resolve_base_url",
    "resolve_endpoint",
    "usable_key",
]

VENDOR_URL = "https://api.deepseek.com"
BASE_URL_VARIABLE = "DEEPSEEK_BASE_URL"
DEFAULT_KEY_VARIABLE = "DEEPSEEK_API_KEY"
_VENDOR_HOST = "deepseek.com"
_PATH = "/chat/completions"

Lookup = Callable[[str], str | None]
"""Returns the value of an environment variable in the launch layers, or ``None``."""


@value
class Endpoint:
    """The address of one request."""

    url: str
    """Address that is called."""
    shown: str
    """The same for people: without the query."""
    vendor: bool
    """Whether it belongs to DeepSeek."""
    secure: bool
    """Whether it is reached over TLS."""
    origin: str
    """What named it: a variable, the configuration, or the default."""


@value
class Credential:
    """A key and the name of the variable it came from; its text never shows the key."""

    key: str
    reference: str

    def __repr__(self) -> str:
        return f"Credential({self.reference})"


def resolve_endpoint(base_url: str, origin: str) -> Endpoint:
    """Return the endpoint under ``base_url``.

    Raises:
        LlmError: ``INVALID_REQUEST``, it is not an http or https URL.
    """
    try:
        parts = urlsplit(base_url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise LlmError(
            f"the model endpoint is not an http(s) URL; correct {origin}, for example "
            f"to {VENDOR_URL}",
            code="INVALID_REQUEST",
        )
    path = parts.path.rstrip("/").removesuffix(_PATH) + _PATH
    bare = f"[{host}]" if ":" in host else host
    place = bare if port is None else f"{bare}:{port}"
    return Endpoint(
        # A user and password in the address would take the place of the key.
        url=urlunsplit((parts.scheme, place, path, parts.query, "")),
        shown=urlunsplit((parts.scheme, place, path, "", "")),
        vendor=host == _VENDOR_HOST or host.endswith("." + _VENDOR_HOST),
        secure=parts.scheme == "https",
        origin=origin,
    )


def resolve_base_url(configured: str | None, lookup: Lookup) -> tuple[str, str]:
    """Return the base URL and what named it: configuration, environment, or the default."""
    if configured:
        return configured, "baseURL of llm-deepseek"
    if from_environment := lookup(BASE_URL_VARIABLE):
        return from_environment, BASE_URL_VARIABLE
    return VENDOR_URL, "the default"


def usable_key(raw: str | None, variable: str) -> Credential:
    """Return the key as it is sent.

    Raises:
        LlmError: ``MISSING_CREDENTIAL`` or ``INVALID_CREDENTIAL``; names the variable only.
    """
    key = (raw or "").strip()
    if not key:
        raise LlmError(missing_key(variable), code="MISSING_CREDENTIAL")
    if problem := unusable_key_problem(key):
        raise LlmError(
            f"the API key in {variable} cannot be used: {problem}", code="INVALID_CREDENTIAL"
        )
    return Credential(key, variable)


def missing_key(variable: str) -> str:
    """Say that a key is missing and the ways to give one."""
    return (
        f"no API key for DeepSeek: store one by: dsh credentials set {variable}; or set "
        f"{variable} in the environment, or add the line {variable}=<your key> to $DSH_HOME/.env"
    )
