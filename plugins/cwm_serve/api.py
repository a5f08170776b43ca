"""The operations of the server, as an ASGI application."""

from __future__ import annotations

import logging
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cwm_cli.data.spaces import json_value
from cwm_cli.planning.model import EpisodeHistory
from cwm_cli.sandbox.pool import SandboxError
from cwm_serve.engines import ModelFailure, PredictionOutcome, StepRow
from cwm_serve.guard import RequestGuard, busy
from cwm_serve.limits import Clients, ServerBusy, ServerLimits, TooManyRequests
from cwm_serve.openapi import ApiOperation, openapi_document
from cwm_serve.replies import ApiError, invalid_values, json_response, read_model
from cwm_serve.schemas import (
    EpisodeState,
    Health,
    HistoryRequest,
    PredictReply,
    RowFailure,
    SessionEntry,
    SessionList,
    make_schemas,
)
from cwm_serve.sessions import Session, Sessions
from cwm_serve.values import read_values
from cwm_serve.world import ServedWorld

LOG = logging.getLogger("cwm.serve")

Handler = Callable[[Request], Awaitable[Response]]


class WorldServer:
    """Answers the requests for one world model.

    Args:
        world: The world model.
        limits: The limits.
        token: The token that requests need, or "".
        only_loopback: Whether the server listens on loopback.
    """

    def __init__(
        self, world: ServedWorld, limits: ServerLimits, *, token: str, only_loopback: bool
    ) -> None:
        self._world, self._limits, self._token = world, limits, token
        self._only_loopback = only_loopback
        self._sessions = Sessions(limits, world.engine.keeps, world.max_steps)
        self._threads = CapacityLimiter(limits.workers)
        self.requests = 0
        self._schemas = make_schemas(
            world.observation_space, world.action_space, world.engine.keeps
        )
        self._page = files("cwm_serve").joinpath("page.html").read_text(encoding="utf-8")
        self._page_policy = _policy_of(self._page)
        self._table = self._operations()
        title = f"World model of {world.info.environment}"
        operations = [operation for operation, _ in self._table]
        self._document = openapi_document(operations, title, has_token=bool(token))

    def app(self) -> ASGIApp:
        """Return the application, with the guard before it."""
        routes = [
            Route(each.path, partial(self._answer, handler), methods=[each.method], name=each.name)
            for each, handler in self._table
        ]
        handlers = {HTTPException: _no_route}
        inner = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
        return RequestGuard(
            inner,
            clients=Clients(self._limits),
            token=self._token,
            only_loopback=self._only_loopback,
            public={each.path for each, _ in self._table if each.is_public},
        )

    def _operations(self) -> list[tuple[ApiOperation, Handler]]:
        """Return all operations with their handlers."""
        made, session = self._schemas, "/v1/sessions/{session}"
        failing = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
        info, missing = type(self._world.info), (HTTPStatus.NOT_FOUND,)
        over = (*missing, HTTPStatus.CONFLICT, *failing)
        rows: list[tuple[ApiOperation, Handler]] = [
            (ApiOperation("GET", "/", "page", "A page to play in this model.",
                       media=("text/html",), is_public=True), self._get_page),
            (ApiOperation("GET", "/openapi.json", "openapi", "This document.",
                       media=("application/json",)), self._get_document),
            (ApiOperation("GET", "/v1/health", "health", "Check that the server runs.",
                       reply=Health, is_public=True), self._get_health),
            (ApiOperation("GET", "/v1/model", "model", "Describe this model.", reply=info),
             self._get_model),
            (ApiOperation("POST", "/v1/predict", "predict", "Predict one step of each row.",
                       made.predict, made.predictions, errors=failing), self._predict),
            (ApiOperation("GET", "/v1/sessions", "list_sessions", "List all sessions.",
                       reply=SessionList), self._list_sessions),
            (ApiOperation("POST", "/v1/sessions", "open_session", "Begin an episode.", made.episode,
                       made.state, status=HTTPStatus.CREATED), self._open_session),
            (ApiOperation("GET", session, "get_session", "Return the state of an episode.",
                       reply=made.state, errors=missing), self._get_session),
            (ApiOperation("DELETE", session, "close_session", "Remove a session.",
                       status=HTTPStatus.NO_CONTENT, errors=missing), self._close_session),
            (ApiOperation("POST", f"{session}/reset", "reset_session", "Begin another episode.",
                       made.episode, made.state, errors=missing), self._reset_session),
            (ApiOperation("POST", f"{session}/step", "step_session", "Take an action.", made.step,
                       made.state, errors=over), self._step_session),
            (ApiOperation("GET", f"{session}/picture", "picture", "Draw the latest observation.",
                       media=("image/png", "text/plain"), errors=missing), self._get_picture),
        ]  # fmt: skip
        return rows

    async def _answer(self, handler: Handler, request: Request) -> Response:
        """Return the response of a handler; every error becomes JSON."""
        self.requests += 1
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  # the server continues after any error
            return _explain(error).response()

    # Operations

    async def _get_page(self, _: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._page_policy})

    async def _get_document(self, _: Request) -> Response:
        return JSONResponse(self._document)

    async def _get_health(self, _: Request) -> Response:
        return json_response(Health())

    async def _get_model(self, _: Request) -> Response:
        return json_response(self._world.info)

    async def _list_sessions(self, _: Request) -> Response:
        entries = [
            SessionEntry(
                session=each.name,
                step=each.steps,
                total=each.total,
                idle_seconds=self._sessions.idle_seconds(each),
            )
            for each in self._sessions
        ]
        return json_response(SessionList(sessions=entries))

    async def _open_session(self, request: Request) -> Response:
        observation, seed = await self._read_start(request)
        address = request.client.host if request.client else ""
        session = self._sessions.open(address, observation, seed)
        return json_response(self._state(session), HTTPStatus.CREATED)

    async def _get_session(self, request: Request) -> Response:
        return json_response(self._state(self._find(request)))

    async def _close_session(self, request: Request) -> Response:
        self._sessions.close(self._find(request).name)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _reset_session(self, request: Request) -> Response:
        session = self._find(request)
        observation, seed = await self._read_start(request)
        async with session.lock:
            session.restart(observation, seed)
        return json_response(self._state(session))

    async def _step_session(self, request: Request) -> Response:
        session = self._find(request)
        asked = await read_model(request, self._schemas.step, self._limits)
        [action] = self._read_actions([asked.action])
        async with session.lock:
            if session.is_over:
                raise ApiError(
                    HTTPStatus.CONFLICT,
                    "episode_over",
                    "the episode has ended",
                    f"begin another one: POST /v1/sessions/{session.name}/reset",
                )
            [outcome] = await self._step([session.row(action)])
            if outcome.step is None:
                raise _row_failed(outcome.reason)
            session.record(action, outcome.step)
            return json_response(self._state(session))

    async def _get_picture(self, request: Request) -> Response:
        picture = await self._world.artist.draw(self._find(request).observation)
        if picture is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "no_picture",
                "observations of this environment cannot be drawn",
                "show the numbers of the observation",
            )
        return Response(picture.content, media_type=picture.media_type)

    async def _predict(self, request: Request) -> Response:
        asked = await read_model(request, self._schemas.predict, self._limits)
        actions = self._read_actions(asked.actions)
        if isinstance(asked, HistoryRequest):
            histories = [
                self._read_history(place, each) for place, each in enumerate(asked.histories)
            ]
        else:
            self._check_size(len(asked.observations))
            seen = self._read_observations(asked.observations)
            histories = [EpisodeHistory((each,)) for each in seen]
        self._check_size(sum(len(each.observations) for each in histories))
        rows = [
            StepRow(history, (action,), (asked.seed, 0, place))
            for place, (history, action) in enumerate(zip(histories, actions, strict=True))
        ]
        outcomes = await self._step(rows) if rows else []
        if outcomes and all(outcome.step is None for outcome in outcomes):
            raise _row_failed(outcomes[0].reason)
        return json_response(self._predictions(outcomes))

    # Parts of operations

    async def _step(self, rows: Sequence[StepRow]) -> list[PredictionOutcome]:
        """Step rows in a thread; a client that leaves does not wait for it."""
        step = partial(self._world.engine.step, rows)
        return await to_thread.run_sync(step, limiter=self._threads, abandon_on_cancel=True)

    def _find(self, request: Request) -> Session:
        """Return the session in the path."""
        session = self._sessions.find(request.path_params["session"])
        if session is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "no_session",
                "there is no such session, or it has expired",
                "open one: POST /v1/sessions",
            )
        return session

    async def _read_start(self, request: Request) -> tuple[Any, int]:
        """Return the first observation and the seed of an episode."""
        asked = await read_model(request, self._schemas.episode, self._limits)
        seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
        if asked.observation is None:
            return self._world.start(seed), seed
        return self._read_observations([asked.observation])[0], seed

    def _read_observations(self, values: Sequence[Any]) -> list[Any]:
        try:
            return read_values(self._world.observation_space, "observations", values)
        except ValueError as error:
            raise invalid_values(str(error)) from None

    def _read_actions(self, values: Sequence[Any]) -> list[Any]:
        try:
            return read_values(self._world.action_space, "actions", values, bounded=True)
        except ValueError as error:
            raise invalid_values(str(error)) from None

    def _read_history(self, place: int, asked: Any) -> EpisodeHistory:
        try:
            seen = self._read_observations(asked.observations)
            taken = self._read_actions(asked.actions)
        except ApiError as error:
            raise invalid_values(f"histories.{place}: {error}") from None
        return EpisodeHistory(tuple(seen), tuple(taken), tuple(asked.rewards))

    def _check_size(self, count: int) -> None:
        if count > self._limits.rows:
            raise ApiError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too_many_rows",
                f"the request has {count:,} rows; the limit is {self._limits.rows:,}",
                "send several requests",
            )

    def _state(self, session: Session) -> EpisodeState[Any, Any]:
        """Return the state of a session for a client."""
        return self._schemas.state(
            session=session.name,
            seed=session.seed,
            step=session.steps,
            action=json_value(session.action),
            observation=json_value(session.observation),
            reward=session.reward,
            total=session.total,
            terminated=session.terminated,
            truncated=session.truncated,
            valid_actions=None if session.valid is None else list(session.valid),
        )

    def _predictions(self, outcomes: Sequence[PredictionOutcome]) -> PredictReply[Any]:
        """Return the outcomes of rows for a client."""
        steps = [outcome.step for outcome in outcomes]
        valid = [None if step is None or step.valid is None else list(step.valid) for step in steps]
        return self._schemas.predictions(
            observations=[step and json_value(step.observation) for step in steps],
            rewards=[None if step is None else step.reward for step in steps],
            terminated=[None if step is None else step.terminated for step in steps],
            valid_actions=valid if any(each is not None for each in valid) else None,
            failures=[
                RowFailure(row=row, cause=outcome.reason)
                for row, outcome in enumerate(outcomes)
                if outcome.step is None
            ],
        )


REMEDY = "choose another observation or action, or improve the program"


def _row_failed(reason: str) -> ApiError:
    """Return the error of a row that the model cannot predict."""
    cause = f"the model failed: {reason}"
    return ApiError(HTTPStatus.BAD_GATEWAY, "model_failed", cause, REMEDY)


def _explain(error: Exception) -> ApiError:
    """Return the error for a client; log errors that are not the client's."""
    match error:
        case ApiError():
            return error
        case ModelFailure(failure=failure):
            late = failure.is_timeout
            status = HTTPStatus.GATEWAY_TIMEOUT if late else HTTPStatus.BAD_GATEWAY
            code = "model_timeout" if late else "model_failed"
            return ApiError(status, code, str(error), REMEDY)
        case TooManyRequests():
            return ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_sessions",
                str(error),
                "close a session (DELETE), or wait until one expires",
                retry_seconds=error.seconds,
            )
        case ServerBusy():
            return busy(error)
        case SandboxError():
            LOG.warning("the sandbox failed: %s", error)
            return busy(ServerBusy("the sandbox failed"))
    LOG.error("a request failed", exc_info=error)
    status, cause = HTTPStatus.INTERNAL_SERVER_ERROR, "the server made a mistake"
    return ApiError(status, "internal_error", cause, "see its output, and report it")


def _policy_of(page: str) -> str:
    """Return the Content-Security-Policy of the page: its own script, and this server only."""
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src blob: data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


async def _no_route(_: Request, error: HTTPException) -> Response:
    """Return the error of a path or a method that the server does not have."""
    status = HTTPStatus(error.status_code)
    refused = ApiError(
        status, "no_operation", status.phrase, "see /openapi.json for all operations"
    )
    response = refused.response()
    response.headers.update(error.headers or {})
    return response
