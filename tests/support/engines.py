"""Servers on the loopback with the manners of engines: Ollama, vLLM, llama.cpp's, LM Studio.

Each speaks its own protocol, counts tokens by characters, and refuses in its own words.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cwm_cli.search.contracts import GENERATE, Message, Move, Request
from cwm_litellm.backend import LiteLLM
from openai_server import Behaviour, Handler, OpenAIServer, Received, answer, error

PER_TOKEN = 4
Answers = Callable[[dict[str, Any]], Behaviour]


def tokens(text: str) -> int:
    """Count the tokens of a text, as these servers do."""
    return len(text) // PER_TOKEN


def asked(body: dict[str, Any]) -> str:
    """Return all that messages say, whose contents may be in parts."""
    return "\n".join(content(message) for message in body["messages"])


def content(message: dict[str, Any]) -> str:
    """Return the text of a message."""
    said = message["content"]
    return said if isinstance(said, str) else "".join(part["text"] for part in said)


@dataclass
class Ollama(OpenAIServer):
    """Ollama: `/api/chat` and `/api/generate`, and `/api/show` for the properties of a model.

    A prompt longer than `num_ctx` is cut without a message, and the tokens that were cut are not
    counted. Without instructions, a model `thinks` in a separate field, or `aloud` in the text.
    """

    script: Any = "print('hello')"
    context_length: int = 131_072
    parameters: str = ""
    thinking: str = ""
    can_think: bool = True
    shown: list[str] = field(default_factory=list)

    @property
    def chats(self) -> list[dict[str, Any]]:
        """The chat requests; LiteLLM also requests the properties of a model at any time."""
        return [each.body for each in self.requests if "messages" in each.body]

    def respond_to(self, path: str, request: Received) -> Behaviour:
        """Answer at one of its addresses."""
        body = request.body
        with self._lock:
            self.requests.append(request)
        if path == "/api/show":
            self.shown += [body["model"]] if "model" in body else []  # LiteLLM asks by `name`
            facts = {"general.architecture": "llama", "llama.context_length": self.context_length}
            return said({"parameters": self.parameters, "model_info": facts})
        if path not in ("/api/chat", "/api/generate"):
            return error(404, "404 page not found")
        name = body["model"]
        if name == "missing":
            return said({"error": f"model '{name}' not found"}, 404)
        if body.get("think") and not self.can_think:
            return said({"error": f'"{name}" does not support thinking'}, 400)
        options = body.get("options") or {}
        prompt = body["prompt"] if path == "/api/generate" else asked(body)
        held = int(options.get("num_ctx", 4096))
        read = min(tokens(prompt), held)  # the rest is cut, and nobody told
        text = self.script if isinstance(self.script, str) else self.script(prompt[-held * 4 :])
        room = min(options.get("num_predict", 1 << 30), held - read)
        made, wanted = text[: room * PER_TOKEN], tokens(self.thinking + text)
        told = {
            "model": name,
            "created_at": "2026-05-24T02:12:05.859654Z",
            "done": True,
            "done_reason": "length" if wanted > room else "stop",
            "total_duration": 5_191_566_416,
            "load_duration": 2_154_458,
            "prompt_eval_count": read,
            "prompt_eval_duration": 383_809_000,
            "eval_count": min(wanted, room),
            "eval_duration": 4_799_921_000,
        }
        if path == "/api/generate":
            return said(told | {"response": made, "context": [1, 2, 3]})
        message = {"role": "assistant", "content": made}
        if self.thinking:
            message["thinking"] = self.thinking
        return said(told | {"message": message})


def said(body: dict[str, Any], status: int = 200) -> Behaviour:
    """Answer with JSON."""
    return lambda handler: handler.reply(status, json.dumps(body).encode())


def vllm(context: int = 8192, *, system: bool = True, newest: bool = False) -> Answers:
    """Answer as vLLM does: thoughts in a field, errors without a wrapping object in older ones."""

    def respond(body: dict[str, Any]) -> Behaviour:
        roles = [message["role"] for message in body["messages"]]
        if not system and "system" in roles:
            return said(
                {
                    "object": "error",
                    "message": "System role not supported",
                    "type": "BadRequestError",
                    "param": None,
                    "code": 400,
                },
                400,
            )
        prompt, wanted = tokens(asked(body)), body.get("max_tokens") or 0
        if prompt + wanted > context:
            words = (
                f"You passed {prompt} input tokens and requested {wanted} output tokens. However, "
                f"the model's context length is only {context} tokens, resulting in a maximum "
                f"input length of {context - wanted} tokens. Please reduce the length of the input "
                f"prompt. (parameter=input_tokens, value={prompt})"
                if newest
                else f"This model's maximum context length is {context} tokens. However, you "
                f"requested {prompt + wanted} tokens ({prompt} in the messages, {wanted} in the "
                "completion). Please reduce the length of the messages or completion."
            )
            return error(400, words, "BadRequestError")
        thoughts = {"reasoning" if newest else "reasoning_content": "```python\nwrong = 1\n```"}
        return answer("```python\nright = 1\n```", prompt, 40, **thoughts)

    return respond


def llama_cpp(context: int = 4096, *, template: str = "") -> Answers:
    """Answer as llama.cpp's server does: a template that raises is a failure of its own."""

    def respond(body: dict[str, Any]) -> Behaviour:
        roles = [message["role"] for message in body["messages"]]
        if template and "system" in roles:
            return said({"error": {"code": 500, "message": template, "type": "server_error"}}, 500)
        prompt = tokens(asked(body))
        if prompt > context:
            told = {
                "code": 400,
                "message": f"request ({prompt} tokens) exceeds the available context size "
                f"({context} tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": prompt,
                "n_ctx": context,
            }
            return said({"error": told}, 400)

        def behave(handler: Handler) -> None:
            message = {"role": "assistant", "content": "right = 1", "reasoning_content": "wrong"}
            usage = {"prompt_tokens": prompt, "completion_tokens": 12, "total_tokens": prompt + 12}
            timings = {"cache_n": prompt - 1, "prompt_n": 1, "predicted_n": 12}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            facts = {"id": "chatcmpl-x", "object": "chat.completion", "created": 1, "model": "m"}
            body = {**facts, "choices": [choice], "usage": usage, "timings": timings}
            handler.reply(200, json.dumps(body).encode())

        return behave

    return respond


def lm_studio(context: int = 4096) -> Answers:
    """Answer as LM Studio does, whose errors are a bare text."""

    def respond(body: dict[str, Any]) -> Behaviour:
        prompt = tokens(asked(body))
        if prompt > context:
            words = (
                f"Trying to keep the first {prompt} tokens when context overflows. However, the "
                f"model is loaded with context length of only {context} tokens, which is not "
                "enough. Try to load the model with a larger context length, or provide a shorter "
                "input"
            )
            return said({"error": words}, 400)
        return answer("right = 1", prompt, 12)

    return respond


def particular(**refused: str) -> Answers:
    """Answer as models do that are particular about parameters: each has words to refuse it.

    `system` and `assistant` are refused where they are the roles of messages.
    """

    def respond(body: dict[str, Any]) -> Behaviour:
        roles = [message["role"] for message in body["messages"]]
        sent = {*body, *(["system"] if "system" in roles else []), *roles[-1:]}
        for name, words in refused.items():
            if name in sent:
                return error(400, words, "unsupported_value")
        return answer(json.dumps(body))

    return respond


SYSTEM = Message(role="system", content="You write programs.")

USER = Message(role="user", content="Write one.")


def request(*messages, **more):
    asked = Request(messages or (SYSTEM, USER), 7, Move(GENERATE), problem=None, step=3)
    return asked._replace(**more)


def backend(server, model, **options):
    quick = {"api_base": server.url, "timeout": 20, "retries": 6, "backoff": 0.01}
    return LiteLLM(model, **quick | options)
