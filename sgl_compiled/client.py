"""Small typed clients for ``POST /v1/select_k``, for those who do not use SGLang's frontend language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel

from sgl_compiled.errors import GrammarError, ServerError, SglCompiledError
from sgl_compiled.grammar.model import finite_schema, read_model
from sgl_compiled.runtime.schema import SelectResponse

__all__ = ["AsyncClient", "Client", "ModelSelection", "request_body"]

_PATH = "/v1/select_k"
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class ModelSelection(Generic[M]):
    """A chosen instance.

    Attributes
    ----------
    value : instance of the model
    response : SelectResponse
        The choice it was read from, with its evidence.
    """

    value: M
    response: SelectResponse


def request_body(
    prompt: str | Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    k: int = 1,
    *,
    messages: Sequence[dict[str, Any]] | None = None,
    regex: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the JSON body of a request; ``options`` are further fields of ``SelectRequest``."""
    if isinstance(labels, str):
        raise GrammarError("labels must be a list of strings; a single string would be read letter by letter")
    body: dict[str, Any] = {
        "prompt": prompt if isinstance(prompt, str) or prompt is None else list(prompt),
        "messages": None if messages is None else list(messages),
        "labels": None if labels is None else list(labels),
        "regex": regex,
        "k": k,
        **options,
    }
    return {key: value for key, value in body.items() if value is not None}


_LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""SGLang closes a connection that was idle for five seconds; one taken up again just then would fail."""


def _read(response: httpx.Response) -> SelectResponse:
    if response.status_code == httpx.codes.OK:
        return SelectResponse.model_validate_json(response.content)
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500]
    if response.status_code == httpx.codes.NOT_FOUND and "error" not in response.text:
        message = "this server has no /v1/select_k: is sgl_compiled installed beside SGLang, and SGLANG_PLUGINS unset?"
    kind = ServerError if response.status_code >= 500 else SglCompiledError
    raise kind(f"{message} (HTTP {response.status_code})")


class Client:
    """Synchronous client.

    Parameters
    ----------
    base_url : str
        Such as ``"http://127.0.0.1:30000"``.
    api_key : str, optional
    timeout_s : float
        Seconds to wait for an answer.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        self._http = httpx.Client(
            base_url=base_url, headers=_headers(api_key), timeout=timeout_s, trust_env=False, limits=_LIMITS
        )

    def select_k(
        self, prompt: str | Sequence[int] | None = None, labels: Sequence[str] | None = None, k: int = 1, **options: Any
    ) -> SelectResponse:
        """Choose ``k`` of ``labels`` behind ``prompt``; ``options`` as in :func:`request_body`.

        Raises
        ------
        GrammarError
            ``labels`` is a single string.
        SglCompiledError
            The server refused the request; the message says why.
        ServerError
            The server failed.
        httpx.TransportError
            It could not be reached.
        """
        return _read(self._http.post(_PATH, json=request_body(prompt, labels, k, **options)))

    def select_model(self, prompt: str | Sequence[int] | None, model: type[M], **options: Any) -> ModelSelection[M]:
        """Choose the fields of a pydantic ``model`` behind ``prompt``; ``options`` as in :func:`request_body`.

        Raises
        ------
        GrammarError
            A field of the model has infinitely many values, or a validator refuses the values chosen.

        Further errors are those of :meth:`select_k`.
        """
        response = self.select_k(prompt, json_schema=finite_schema(model), **options)
        return ModelSelection(read_model(model, response.text), response)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """Asynchronous client; parameters as in :class:`Client`."""

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=_headers(api_key), timeout=timeout_s, trust_env=False, limits=_LIMITS
        )

    async def select_k(
        self, prompt: str | Sequence[int] | None = None, labels: Sequence[str] | None = None, k: int = 1, **options: Any
    ) -> SelectResponse:
        """See :meth:`Client.select_k`."""
        return _read(await self._http.post(_PATH, json=request_body(prompt, labels, k, **options)))

    async def select_model(
        self, prompt: str | Sequence[int] | None, model: type[M], **options: Any
    ) -> ModelSelection[M]:
        """See :meth:`Client.select_model`."""
        response = await self.select_k(prompt, json_schema=finite_schema(model), **options)
        return ModelSelection(read_model(model, response.text), response)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
