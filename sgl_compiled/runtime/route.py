"""``POST /v1/select_k`` on SGLang's own HTTP server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from sgl_compiled.errors import ModelError, NumericalError, ServerError, SglCompiledError
from sgl_compiled.grammar.regex_backends import check_backend
from sgl_compiled.runtime.answer import read_grammar, read_prompt, write_response
from sgl_compiled.runtime.engine import SelectEngine
from sgl_compiled.runtime.schema import CalibrationModel, SelectRequest, SelectResponse

__all__ = ["add_route"]

_engine: SelectEngine | None = None


class _Route(APIRoute):
    """Answer a malformed body in one readable sentence, with the field's name."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _error(400, "; ".join(_sentence(item) for item in error.errors()))

        return handler


def _sentence(item: Any) -> str:
    field = ".".join(str(part) for part in item["loc"] if part != "body")
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{field}: {message}" if field else message


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status_code=status)


def add_route(*_: Any, **__: Any) -> None:
    """Add the route before the server starts: BEFORE ``http_server.launch_server``."""
    from sglang.srt.entrypoints.http_server import app

    if any(getattr(route, "path", None) == "/v1/select_k" for route in app.routes):
        return
    app.router.routes.append(
        _Route(
            "/v1/select_k",
            select_k,
            methods=["POST"],
            response_model=SelectResponse,
            tags=["sgl_compiled"],
            summary="Choose labels, exactly as grammar-constrained decoding would, without decoding.",
        )
    )
    app.router.routes.append(
        _Route(
            "/v1/select_k/calibrate",
            calibrate,
            methods=["POST"],
            response_model=CalibrationModel,
            tags=["sgl_compiled"],
            summary="Measure what passes cost on this server; takes seconds and is kept for the next start.",
        )
    )
    app.openapi_schema = None


def _get_engine() -> SelectEngine:
    global _engine
    if _engine is None:
        from sglang.srt.entrypoints.http_server import get_global_state

        state = get_global_state()
        assert state is not None
        _engine = SelectEngine(state.tokenizer_manager, int(state.scheduler_info["max_total_num_tokens"]))
    return _engine


async def calibrate() -> Any:
    """Measure what passes cost on this server."""
    try:
        model, samples = await _get_engine().calibrate()
    except ServerError as error:
        return _error(500, str(error))
    errors = sorted(abs(model.pass_ms(s.tokens, s.prefix, s.rows) / s.ms - 1) for s in samples)
    return CalibrationModel(
        a_ms=model.a_ms,
        b_ms=model.b_ms,
        c_ms=model.c_ms,
        d_ms=model.d_ms,
        passes=len(samples),
        error=errors[len(errors) // 2],
    )


async def select_k(body: SelectRequest, request: Request) -> Any:
    """Choose ``k`` labels, or one string of a regex, behind a prompt."""
    engine = _get_engine()
    served = engine.manager.served_model_name
    try:
        if body.model is not None and body.model not in (served, engine.manager.model_path):
            raise ModelError(f"model {body.model!r} is not served here; this server has {served!r}")
        grammar = await asyncio.to_thread(read_grammar, body)
        if body.spelling == "any" and body.regex is not None:
            check_backend(body.regex, engine.manager.server_args.grammar_backend)
        prompt = await asyncio.to_thread(read_prompt, body, engine.manager.tokenizer)
        compiler = await engine.compiler()
        compiled = await asyncio.to_thread(compiler.compile, grammar, body.spelling)
        selection = await engine.select(compiled, prompt, body.plan, request)
        return write_response(selection, body, served, compiler.info)
    except ModelError as error:
        return _error(404, str(error))
    except (NumericalError, ServerError) as error:
        return _error(500, str(error))
    except SglCompiledError as error:
        return _error(400, str(error))
    except ValueError as error:
        # SGLang reports its own refusals (and a client that left) as plain ValueErrors.
        return _error(400, str(error) or f"request {uuid.uuid4().hex} was refused")
