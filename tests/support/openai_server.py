"""A server on the loopback that speaks OpenAI's chat completions, well or badly, as scripted."""

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Behaviour = Callable[["Handler"], None]
Script = Sequence[Behaviour] | Callable[[dict[str, Any]], str | Behaviour]


class Received(NamedTuple):
    """A request as it came in; `seconds` is a monotonic time."""

    body: dict[str, Any]
    headers: dict[str, str]
    seconds: float

    @property
    def prompt(self) -> str:
        """The text of all its messages."""
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass
class OpenAIServer:
    """Answers requests as its script says, and keeps them.

    A script is a list of behaviours, one per request in the order of arrival,
    of which the last repeats forever, or a function of a request's body that
    returns a behaviour or the text of an answer.
    """

    script: Script
    requests: list[Received] = field(default_factory=list, init=False)
    closing: threading.Event = field(default_factory=threading.Event, init=False)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), Handler)
        self._http.openai = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        """What clients call `api_base`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def respond_to(self, path: str, request: Received) -> Behaviour | None:
        """Answer at an address that servers of other protocols have; here there is none."""
        return None

    def respond(self, request: Received) -> Behaviour:
        """Take a request in and return what to do about it."""
        with self._lock:
            self.requests.append(request)
            count = len(self.requests)
        if callable(self.script):
            made = self.script(request.body)
            return answer(made) if isinstance(made, str) else made
        return self.script[min(count, len(self.script)) - 1]


class _Server(ThreadingHTTPServer):
    """The HTTP server of an `OpenAIServer`."""

    daemon_threads = True
    block_on_close = False
    openai: OpenAIServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about clients that do not take all of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body that follows its headers would wait for 40 ms
    server: _Server
    request_body: dict[str, Any]

    def do_POST(self) -> None:
        """Serve a completion."""
        self.request_body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        received = Received(self.request_body, dict(self.headers), time.monotonic())
        try:
            server = self.server.openai
            told = server.respond_to(self.path, received)
            (told or server.respond(received))(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up, as some tests want it to

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a JSON response."""
        self.send_response(status)
        sent = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in {**sent, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, content_type: str, length: int | None = None) -> None:
        """Send the header of an answer, whose body follows."""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def stream(self, message: dict[str, Any], finish: str, prompt: int, completion: int) -> None:
        """Send a message as server-sent events, and its tokens if those were asked for."""
        self.begin("text/event-stream")
        deltas = [{"role": "assistant"}]
        deltas += [{"content": piece} for piece in (message["content"] or "").split("\n")]
        deltas[2:] = [{"content": "\n" + piece["content"]} for piece in deltas[2:]]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": finish}])
        events = [_body(self, choice, "chat.completion.chunk") for choice in choices]
        if (self.request_body.get("stream_options") or {}).get("include_usage"):
            counts = _usage(prompt, completion)
            events.append(_body(self, [], "chat.completion.chunk") | {"usage": counts})
        for event in [*map(json.dumps, events), "[DONE]"]:
            self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def answer(
    text: str | None,
    prompt_tokens: int = 100,
    completion_tokens: int = 10,
    finish: str = "stop",
    tokens: Sequence[tuple[str, float]] = (),
    usage: dict[str, Any] | None = None,
    **more: str,
) -> Behaviour:
    """Answer with a text, or with a content of null, in one piece or in several as was asked.

    A message may hold `more`, such as a refusal, and its `usage` more than how many tokens. The
    log-probabilities of its `tokens` are returned if they are requested.
    """

    def behave(handler: Handler) -> None:
        message = {"role": "assistant", "content": text, **more}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
        if handler.request_body.get("logprobs") and tokens:
            told = [{"token": token, "logprob": p, "top_logprobs": []} for token, p in tokens]
            choice["logprobs"] = {"content": told, "refusal": None}
        if handler.request_body.get("stream"):
            handler.stream(message, finish, prompt_tokens, completion_tokens)
        else:
            body = _completion(handler, [choice], prompt_tokens, completion_tokens)
            if usage:
                told = json.loads(body)
                body = json.dumps(told | {"usage": told["usage"] | usage}).encode()
            handler.reply(200, body)

    return behave


def whole(text: str, content_type: str = "application/json") -> Behaviour:
    """Answer without streaming, even if it is requested."""

    def behave(handler: Handler) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        body = _completion(handler, [choice | {"finish_reason": "stop"}], 100, 10)
        handler.reply(200, body, {"Content-Type": content_type})

    return behave


def huge(megabytes: int, sent: list[int], content_type: str = "application/json") -> Behaviour:
    """Answer without end; `sent` counts the megabytes that the client received."""

    def behave(handler: Handler) -> None:
        start = _completion(handler, [], 100, 10).partition(b"[]")[0]
        start += b'[{"index": 0, "message": {"role": "assistant", "content": "'
        handler.begin(content_type, len(start) + (megabytes << 20))
        handler.wfile.write(start)
        for _ in range(megabytes):
            handler.wfile.write(b"x" * (1 << 20))
            sent.append(1)

    return behave


def drip(seconds: float, *, header: bool = False) -> Behaviour:
    """Send a byte every so often for as long as the server lives, of the body or of the header."""

    def behave(handler: Handler) -> None:
        if header:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        else:
            handler.begin("application/json", 1 << 20)
        while not handler.server.openai.closing.wait(seconds):
            handler.wfile.write(b" ")

    return behave


def no_choices(handler: Handler) -> None:
    """Answer with an empty list of choices."""
    handler.reply(200, _completion(handler, [], 100, 0))


def truncated_json(handler: Handler) -> None:
    """Send the first half of an answer as a complete answer."""
    body = _completion(handler, [], 100, 10)
    handler.reply(200, body[: len(body) // 2])


def cut_off(handler: Handler) -> None:
    """Announce the length of an answer, send its first half and close the connection."""
    body = _completion(handler, [], 100, 10)
    handler.reply(200, body[: len(body) // 2], {"Content-Length": str(len(body))})
    handler.close_connection = True


def hang(handler: Handler) -> None:
    """Send nothing until the server stops."""
    handler.server.openai.closing.wait(60)
    handler.close_connection = True


def reset(handler: Handler) -> None:
    """Reset the connection."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()
    handler.close_connection = True


def error(
    status: int, message: str = "it broke", code: str | None = None, **headers: str
) -> Behaviour:
    """Refuse with an HTTP status, OpenAI's error body and headers such as Retry_After."""
    body = json.dumps({"error": {"message": message, "type": code, "param": None, "code": code}})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.reply(status, body.encode(), named)


def rate_limited(retry_after: str | None = None) -> Behaviour:
    """Refuse because too much was asked in too little time."""
    headers = {} if retry_after is None else {"Retry_After": retry_after}
    return error(429, "Rate limit reached for requests", "rate_limit_exceeded", **headers)


OUT_OF_QUOTA = error(
    429,
    "You exceeded your current quota, please check your plan and billing details.",
    "insufficient_quota",
)
WRONG_KEY = error(401, "Incorrect API key provided: sk-secret.", "invalid_api_key")
UNKNOWN_MODEL = error(404, "The model `gpt-nonsense` does not exist.", "model_not_found")
TOO_LONG = error(
    400,
    "This model's maximum context length is 128000 tokens. However, your messages resulted in "
    "130000 tokens. Please reduce the length of the messages.",
    "context_length_exceeded",
)


FILTERED = error(
    400,
    "The response was filtered due to the prompt triggering Azure OpenAI's content management "
    "policy.",
    "content_filter",
)


def holds(context: int, words: str = "openai", *, per_token: int = 4) -> Callable[..., Behaviour]:
    """Refuse prompts that are longer than a context of `tokens` tokens, as real servers do.

    Return a function that makes the script of a server from the text of an answer.
    """

    def script(text: str) -> Callable[[dict[str, Any]], Behaviour]:
        def respond(body: dict[str, Any]) -> Behaviour:
            asked = sum(len(message["content"]) for message in body["messages"]) // per_token
            wanted = body.get("max_tokens") or body.get("max_completion_tokens") or 0
            if asked + wanted <= context:
                return answer(text, prompt_tokens=asked)
            message = CONTEXT_WORDS[words].format(
                context=context, asked=asked, wanted=wanted, sum=asked + wanted
            )
            code = "context_length_exceeded" if words == "openai" else "BadRequestError"
            return error(400, message, code)

        return respond

    return script


CONTEXT_WORDS = {
    "openai": "This model's maximum context length is {context} tokens. However, your messages "
    "resulted in {asked} tokens. Please reduce the length of the messages.",
    "vllm": "This model's maximum context length is {context} tokens. However, you requested {sum} "
    "tokens ({asked} in the messages, {wanted} in the completion). Please reduce the length of the "
    "messages or completion.",
    "newer vllm": "'max_tokens' or 'max_completion_tokens' is too large: {wanted}. This model's "
    "maximum context length is {context} tokens and your request has {asked} input tokens "
    "({wanted} > {context} - {asked}).",
    "llama.cpp": "request ({asked} tokens) exceeds the available context size ({context} tokens), "
    "try increasing it",
    "other": "Input is over the context window.",
}
"""How servers say that a prompt, or its answer, is too long."""


def _completion(handler: Handler, choices: list[Any], prompt: int, completion: int) -> bytes:
    body = _body(handler, choices, "chat.completion")
    return json.dumps(body | {"usage": _usage(prompt, completion)}).encode()


def _body(handler: Handler, choices: list[Any], kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": kind,
        "created": 1_700_000_000,
        "model": handler.request_body["model"],
        "choices": choices,
    }


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
