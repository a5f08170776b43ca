"""The OpenAPI 3.1 document, made from the operations and from the models that validate them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from cwm_cli._version import __version__
from cwm_serve.schemas import ApiModel, ErrorReply

Method = Literal["GET", "POST", "DELETE"]


class ApiOperation(NamedTuple):
    """An operation of the server, for its route and for the document.

    Args:
        method: The HTTP method.
        path: The path; `{session}` is the name of a session.
        name: The name of the operation, unique.
        summary: One sentence.
        body: The model of the body of the request.
        reply: The model of the reply.
        media: Media types of a reply without a model.
        status: The status of a reply.
        errors: The statuses of errors that only this operation has.
        is_public: Whether it needs no token.
    """

    method: Method
    path: str
    name: str
    summary: str
    body: type[ApiModel] | None = None
    reply: type[ApiModel] | None = None
    media: tuple[str, ...] = ()
    status: int = HTTPStatus.OK
    errors: tuple[int, ...] = ()
    is_public: bool = False


EVERYWHERE = (
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Errors of every operation."""

OF_BODIES = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
"""Errors of operations whose request has a body."""


def openapi_document(
    operations: Iterable[ApiOperation], title: str, *, has_token: bool
) -> dict[str, Any]:
    """Return the document of some operations.

    Args:
        operations: The operations.
        title: The title.
        has_token: Whether operations need a token.
    """
    listed = list(operations)
    models: dict[tuple[type[ApiModel], JsonSchemaMode], None] = {
        (ErrorReply, "serialization"): None
    }
    for each in listed:
        if each.body is not None:
            models[each.body, "validation"] = None
        if each.reply is not None:
            models[each.reply, "serialization"] = None
    names, definitions = models_json_schema(
        list(models), ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for each in listed:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(
            each, names, has_token=has_token
        )
    components: dict[str, Any] = {"schemas": definitions["$defs"]}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(each: ApiOperation, names: Mapping[Any, Any], *, has_token: bool) -> dict[str, Any]:
    """Return the entry of an operation in the document."""
    found: dict[str, Any] = {"operationId": each.name, "summary": each.summary}
    if "{session}" in each.path:
        schema = {"type": "string", "description": "The name of a session."}
        found["parameters"] = [
            {"name": "session", "in": "path", "required": True, "schema": schema}
        ]
    if each.body is not None:
        content = {"application/json": {"schema": names[each.body, "validation"]}}
        found["requestBody"] = {"required": True, "content": content}
    reply: dict[str, Any] = {"description": HTTPStatus(each.status).phrase}
    if each.reply is not None:
        schema = names[each.reply, "serialization"]
        reply["content"] = {"application/json": {"schema": schema}}
    elif each.media:
        reply["content"] = {media: {} for media in each.media}
    error = {"application/json": {"schema": names[ErrorReply, "serialization"]}}
    statuses = {*EVERYWHERE, *each.errors, *(OF_BODIES if each.body else ())}
    if has_token and not each.is_public:
        statuses.add(HTTPStatus.UNAUTHORIZED)
    found["responses"] = {str(int(each.status)): reply} | {
        str(int(status)): {"description": HTTPStatus(status).phrase, "content": error}
        for status in sorted(statuses)
    }
    if has_token and each.is_public:
        found["security"] = []
    return found
