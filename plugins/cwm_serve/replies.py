"""Errors of the server as JSON, and the body of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cwm_cli.sandbox.failures import printable
from cwm_serve.limits import ServerLimits
from cwm_serve.schemas import ApiModel, ErrorDetail, ErrorInfo, ErrorReply

M = TypeVar("M", bound=ApiModel)


class ApiError(Exception):
    """An error with its HTTP status, cause and remedy.

    Args:
        status: The HTTP status.
        code: A word for programs that read the error.
        cause: The cause.
        remedy: What the client can do.
        details: The mistakes in the body.
        retry_seconds: The time after which to retry, or None.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        cause: str,
        remedy: str,
        *,
        details: Sequence[ErrorDetail] = (),
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(cause)
        self.status, self.retry_seconds = status, retry_seconds
        cause_characters = 1000  # maximum length of a cause; it may contain text of a program
        shown = printable(cause, cause_characters)
        self.info = ErrorInfo(code=code, cause=shown, remedy=remedy, details=list(details))

    def response(self) -> Response:
        """Return the response of the server."""
        headers: dict[str, str] = {}
        if self.retry_seconds is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_seconds)))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(ErrorReply(error=self.info), self.status, headers)


def json_response(
    model: ApiModel, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a model as the JSON body of a response."""
    return Response(model.model_dump_json(), status, headers, "application/json")


async def read_model(request: Request, model: type[M], limits: ServerLimits) -> M:
    """Return the validated body of a request.

    Raises:
        ApiError: The body is too large, too slow, no JSON, or has mistakes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read_body(request, limits)
    if kind != "application/json":
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            f"the content type is {kind or 'missing'!r}",
            "send JSON with the header Content-Type: application/json",
        )
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid_body(error) from None


async def _read_body(request: Request, limits: ServerLimits) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > limits.body_bytes:
                    raise ApiError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        "body_too_large",
                        f"the body has more than {limits.body_bytes:,} bytes",
                        "send fewer rows per request",
                    )
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            "body_too_slow",
            f"the body did not arrive within {limits.body_seconds:g} s",
            "send the request again",
        ) from None
    except ClientDisconnect:
        raise ApiError(
            HTTPStatus.BAD_REQUEST, "disconnected", "the client left", "send the request again"
        ) from None
    return b"".join(pieces)


def _invalid_body(error: ValidationError) -> ApiError:
    """Return the error of a body: 400 if it is no JSON, else 422 with the mistakes."""
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    if mistakes[0]["type"] == "json_invalid":
        return ApiError(
            HTTPStatus.BAD_REQUEST, "invalid_json", mistakes[0]["msg"], "send a JSON object"
        )
    max_details = 10  # maximum number of mistakes that an error lists
    details = [
        ErrorDetail(
            at=printable(".".join(map(str, each["loc"])) or "body", 200),
            problem=each["msg"].removeprefix("Value error, "),
        )
        for each in mistakes[:max_details]
    ]
    return invalid_values(f"{details[0].at}: {details[0].problem}", details)


def invalid_values(cause: str, details: Sequence[ErrorDetail] = ()) -> ApiError:
    """Return the error of a body with wrong values."""
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "invalid_values",
        cause,
        "send what /openapi.json describes; /v1/model has the spaces",
        details=details,
    )
