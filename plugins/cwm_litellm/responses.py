"""Put answers of OpenAI's protocol into the form that LiteLLM reads.

LiteLLM raises an error for a whole answer if one of its fields has an unexpected type, such as a
token count with a fraction or a content in parts. Such an answer is paid for, so its text is kept:
fields that answers need are converted, and all others are left out. Bodies without `choices`, such
as errors, do not change.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CHAT_PATH, COMPLETIONS_PATH = "/chat/completions", "/completions"
"""Ends of the addresses of OpenAI's protocol; other protocols have others."""


def readable_body(body: bytes, path: str) -> bytes:
    """Return the JSON of an answer in the form that LiteLLM reads.

    Args:
        body: The JSON that the server sent; anything else is returned unchanged.
        path: The path of the request.
    """
    return _readable(body, path, streamed=False)


def body_as_event(body: bytes, path: str) -> bytes:
    """Return the JSON of a whole answer as server-sent events, which the client waits for."""
    return b"data: " + _readable(body, path, streamed=True) + b"\n\ndata: [DONE]\n\n"


def readable_events(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Yield the server-sent events of an answer in the form that LiteLLM reads."""
    parts: list[bytes] = []  # of a line without an end yet
    for piece in pieces:
        head, *lines = piece.split(b"\n")
        parts.append(head)
        for line in lines:
            yield _event(b"".join(parts), path) + b"\n"
            parts = [line]
    if any(parts):
        yield _event(b"".join(parts), path)


def read_count(value: object) -> int | None:
    """Return a number of tokens, rounded up; None if the value is not a plausible one."""
    number = _number(value)
    max_count = 10**9  # higher token counts are errors of the server
    return None if number is None or number > max_count else math.ceil(number)


def tokens_of(response: Any) -> tuple[int, int] | None:
    """Return the tokens of a prompt and of its answer, None if the server did not count them."""
    counts = getattr(response, "usage", None)
    prompt = read_count(getattr(counts, "prompt_tokens", None))
    completion = read_count(getattr(counts, "completion_tokens", None))
    return None if not prompt or completion is None else (prompt, completion)


def _event(line: bytes, path: str) -> bytes:
    """Return one line of server-sent events; only data has a body."""
    field, colon, data = line.partition(b":")
    if field != b"data":
        return line
    return field + colon + b" " + _readable(data.strip(), path, streamed=True)


def _readable(body: bytes, path: str, *, streamed: bool) -> bytes:
    path = path.rstrip("/")
    if not path.endswith(COMPLETIONS_PATH):
        return body
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(found, dict) or "choices" not in found:
        return body
    if "usage" in found:
        found["usage"] = _usage(found["usage"])
    if path.endswith(CHAT_PATH):
        choices = found["choices"] if isinstance(found["choices"], list) else [found["choices"]]
        texts = {n: found[n] for n in ("id", "object", "model") if isinstance(found.get(n), str)}
        rest = {name: found[name] for name in ("error", "usage") if name in found}
        listed = [_choice(each, streamed) for each in choices if isinstance(each, dict)]
        found = {**texts, **rest, "choices": listed}
    return json.dumps(found).encode()


def _usage(usage: object) -> dict[str, Any] | None:
    """Return the token counts of an answer, None if they are unknown.

    A missing count of the answer follows from the total. Parts of a prompt cannot exceed it.
    """
    if not isinstance(usage, dict):
        return None
    found = _numbers(usage)
    prompt, completion = found.get("prompt_tokens"), found.get("completion_tokens")
    total = found.get("total_tokens")
    if usage.get("completion_tokens") is None and prompt is not None and total is not None:
        completion = max(0, total - prompt)
    if prompt is None or completion is None:
        return None
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        details = usage.get(name)
        found[name] = _numbers(details) if isinstance(details, dict) else {}
    parts = found["prompt_tokens_details"].items()
    found["prompt_tokens_details"] = {name: n for name, n in parts if n <= prompt}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return found | counts | {"total_tokens": prompt + completion}


def _numbers(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields that hold numbers; fields of tokens hold counts."""
    read = {
        name: read_count(value) if name.endswith("_tokens") else _number(value)
        for name, value in fields.items()
        if not name.endswith("_details")
    }
    return {name: number for name, number in read.items() if number is not None}


def _number(value: object) -> float | None:
    """Return a number that is neither negative nor infinite, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _choice(choice: Mapping[str, Any], streamed: bool) -> dict[str, Any]:
    """Return a choice with its message; some servers send its `text` instead."""
    name = "delta" if streamed else "message"
    message = choice.get(name, choice.get("message"))
    if not isinstance(message, dict):
        message = {"content": choice.get("text")}
    finish, index = choice.get("finish_reason"), choice.get("index")
    found: dict[str, Any] = {
        "index": index if isinstance(index, int) else 0,
        name: _message(message),
        "finish_reason": finish.lower() if finish and isinstance(finish, str) else None,
    }
    if tokens := _log_probabilities(choice.get("logprobs")):
        found["logprobs"] = {"content": tokens, "refusal": None}
    return found


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose content, reasoning and refusal are texts."""
    content = message.get("content")
    parts: list[Any] = content if isinstance(content, list) else [content]
    thoughts = [message.get("reasoning_content") or message.get("reasoning")]
    refusals = [message.get("refusal")]
    texts = []
    for part in parts:
        match part:
            case {"type": "thinking" | "reasoning"}:
                thoughts.append(part.get("thinking") or part.get("reasoning") or part.get("text"))
            case {"type": "refusal"}:
                refusals.append(part.get("refusal"))
            case _:
                texts.append(part)
    found = {"content": _text(texts), "reasoning_content": _text(thoughts)}
    found["refusal"] = _text(refusals)
    return {"role": "assistant", "content": None} | {n: text for n, text in found.items() if text}


def _text(content: object) -> str:
    """Join the texts in a content of any form; lone surrogates, which no file holds, become "?"."""
    match content:
        case str():
            return content.encode("utf-8", "replace").decode()
        case list():
            return "".join(map(_text, content))
        case {"text": text}:
            return _text(text)
    return ""


def _log_probabilities(logprobs: object) -> list[dict[str, Any]]:
    """Return the log-probabilities of the tokens of an answer, none unless all can be read."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    found: list[dict[str, Any]] = []
    for each in content if isinstance(content, list) else ():
        match each:
            case {"token": str() as token, "logprob": int() | float() as value}:
                found.append({"token": token, "logprob": value, "top_logprobs": []})
            case _:
                return []
    return found
