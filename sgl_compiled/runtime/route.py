"""``POST /v1/select_k`` on SGLang's own HTTP server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from sgl_compiled.control.parity import Epsilon
from sgl_compiled.errors import ModelError, NumericalError, ServerError, SglCompiledError
from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.grammar.regex_backends import check_backend
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.runtime.answer import read_grammar, read_prompt, read_question, write_response
from sgl_compiled.runtime.engine import SelectEngine
from sgl_compiled.runtime.inference_schema import ParityModel
from sgl_compiled.runtime.inquire import Findings, inquire, look_back
from sgl_compiled.runtime.replay import calibrate_parity, replay_small_margins
from sgl_compiled.runtime.report import check_evidence, evidence_tree, write_inference
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
    for path, handler, model, summary in _ROUTES:
        route = _Route(path, handler, methods=["POST"], response_model=model, tags=["sgl_compiled"], summary=summary)
        app.router.routes.append(route)
    app.openapi_schema = None


def _get_engine() -> SelectEngine:
    global _engine
    if _engine is None:
        from sglang.srt.entrypoints.http_server import get_global_state

        state = get_global_state()
        assert state is not None
        _engine = SelectEngine(state.tokenizer_manager, state.scheduler_info)
    return _engine


async def calibrate(replays: Annotated[int, Query(ge=0, le=1000)] = 0) -> Any:
    """Measure what passes cost on this server, and with ``replays`` how far they deviate from serial decoding."""
    engine = _get_engine()
    try:
        epsilon = await calibrate_parity(engine, replays) if replays else None
        model, samples = await engine.calibrate()
    except SglCompiledError as error:
        return _error(500, str(error))
    errors = sorted(abs(model.pass_ms(s.tokens, s.prefix, s.rows) / s.ms - 1) for s in samples)
    return CalibrationModel(
        a_ms=model.a_ms,
        b_ms=model.b_ms,
        c_ms=model.c_ms,
        d_ms=model.d_ms,
        wide_ms=model.wide_ms,
        passes=len(samples),
        error=errors[len(errors) // 2],
        parity=None if epsilon is None else epsilon.to_dict(),
    )


async def _answer(
    engine: SelectEngine,
    compiled: CompiledGrammar,
    prompt: list[int],
    body: SelectRequest,
    info: TokenizerInfo,
    request: Request,
) -> SelectResponse:
    """Choose, greedily or by a question about whole answers."""
    served = engine.manager.served_model_name
    # On the loop's own thread, like the prompt: the tokenizer must not be shared between threads.
    question = read_question(body, engine.manager.tokenizer)
    if body.decide != "greedy":
        found = await inquire(engine, compiled, prompt, question, request)
        return await asyncio.to_thread(_report, found, body, served, info, engine.epsilon)
    selection = await engine.select(compiled, prompt, body.plan, request, keep_rows=body.evidence)
    seen = await asyncio.to_thread(look_back, question, selection) if body.evidence else None
    parity = None
    if body.theta is not None:
        parity = await replay_small_margins(engine, selection, body.theta, request)
    if seen is not None:
        response = await asyncio.to_thread(_report, seen, body, served, info, engine.epsilon)
    else:
        response = await asyncio.to_thread(write_response, selection, body, served, info, engine.epsilon)
    if parity is not None:
        response.parity = ParityModel(**asdict(parity))
    return response


def _report(
    found: Findings, body: SelectRequest, model: str, info: TokenizerInfo, epsilon: Epsilon | None
) -> SelectResponse:
    response = write_response(found.selection, body, model, info, epsilon)
    response.inference = write_inference(found, details=body.evidence)
    if body.evidence:
        response.evidence = evidence_tree(found, info)
    return response


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
        # On the loop's own thread, where SGLang encodes too: the tokenizer must not be shared between threads.
        prompt = read_prompt(body, engine.manager.tokenizer)
        compiler = await engine.compiler()
        compiled = await asyncio.to_thread(compiler.compile, grammar, body.spelling)
        if body.evidence:
            check_evidence(compiled)
        return await _answer(engine, compiled, prompt, body, compiler.info, request)
    except ModelError as error:
        return _error(404, str(error))
    except (NumericalError, ServerError) as error:
        return _error(500, str(error))
    except SglCompiledError as error:
        return _error(400, str(error))
    except ValueError as error:
        # SGLang reports its own refusals (and a client that left) as plain ValueErrors.
        return _error(400, str(error) or f"request {uuid.uuid4().hex} was refused")


_ROUTES: tuple[tuple[str, Callable[..., Any], type[BaseModel], str], ...] = (
    (
        "/v1/select_k",
        select_k,
        SelectResponse,
        "Choose labels, exactly as grammar-constrained decoding would, without decoding.",
    ),
    (
        "/v1/select_k/calibrate",
        calibrate,
        CalibrationModel,
        "Measure what passes cost on this server; 'replays' adds deviations from serial decoding.",
    ),
)
