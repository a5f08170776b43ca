"""A server on the loopback that speaks OpenAI's completions with a real, small language model.

It echoes the log-probabilities of its prompt as vLLM does, or fails to in the ways of others.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import log
from typing import Any, Protocol

from cwm_theorize.tiny.model import TinyModel, question_text
from openai_server import Behaviour, Handler, OpenAIServer, answer, error

BOS = "<s>"


class Speaker(Protocol):
    """A language model: pieces of text, and how likely each is after those before it."""

    def tokens(self, text: str) -> Sequence[str]:
        """Cut a text into tokens."""

    def log_probabilities(self, tokens: Sequence[str]) -> Sequence[float | None]:
        """Weigh each token but the first after those before it."""


class Trigrams:
    """A trigram model over words and the characters between them."""

    def __init__(self, text: str) -> None:
        words = self.tokens(text)
        self.words = len(set(words)) + 1  # and any other
        self.pairs = Counter(pairwise(words))
        self.triples = Counter(zip(words, words[1:], words[2:], strict=False))

    def tokens(self, text: str) -> list[str]:
        return re.findall(r"<[^<> ]+>| ?\w+|\s|[^\w\s]", text)

    def log_probabilities(self, tokens: Sequence[str]) -> list[float | None]:
        said: list[float | None] = [None]
        for i in range(1, len(tokens)):
            before = (tokens[i - 2] if i > 1 else "", tokens[i - 1])
            count = self.triples[*before, tokens[i]] + 0.1
            said.append(log(count / (self.pairs[before] + 0.1 * self.words)))
        return said


class Reader:
    """The tiny language model, which reads only the part of a prompt that it was trained on.

    It has no tokens for the text before the question, nor for the characters between words.
    """

    def __init__(self, model: TinyModel) -> None:
        self.model = model

    def tokens(self, text: str) -> list[str]:
        return re.findall(r"<\w+>|\w+|\s|[^\w\s]", text)

    def log_probabilities(self, tokens: Sequence[str]) -> list[float | None]:
        text = "".join(tokens)
        asked, _, said = text.rpartition("\n\n")
        rules = re.search(r"What is known to hold:\n(.*?)\n\n", asked, re.DOTALL)
        here = re.search(r"State: (.*)\nAction: (.*)", asked, re.DOTALL)
        state, action = here.groups() if here else (asked, "")
        prompt = self.model.tokens(question_text(rules[1] if rules else "", state, action))
        words = iter(self.model.of_answers([prompt], [[self.model.tokens(said)]])[0][0].tolist())
        before = len(self.tokens(f"{asked}\n\n"))
        weights = [0.0 if each.isspace() else next(words) for each in tokens[before:]]
        return [None, *[0.0] * (before - 1), *weights]


@dataclass
class Echoes:
    """How a server echoes: whether at all, whether it takes `max_tokens=0`, what else it adds.

    `begins` is the token before every prompt, `special` the token that it generates without text,
    `offsets` whether it returns the positions of tokens, `counts` whether it returns their number.
    """

    echo: str = "echoed"
    """Or "refused", with the message of llama.cpp, or "ignored", as by servers without echo."""
    grammars: str = "ignored"
    """Or "obeyed", as by llama.cpp, or "masked": tokens that the grammar forbids have no share."""
    nothing: bool = True
    begins: str = ""
    special: str = ""
    offsets: bool = True
    counts: bool = True
    reversed: bool = False
    """Whether the choices come in another order than the prompts."""


@dataclass
class LanguageServer(OpenAIServer):
    """Scores prompts with a model at `/completions`; chat uses the script."""

    script: Any = field(default_factory=lambda: [answer("none")])
    speaker: Speaker = field(default_factory=lambda: Trigrams("the red door opens\n" * 9))
    echoes: Echoes = field(default_factory=Echoes)
    template: Callable[[list[dict[str, str]], bool], str] | None = None
    """Words a conversation, and the header of an answer if asked to; offered as vLLM does."""

    tampered: Any = field(default_factory=dict)
    """Replacements of true values in answers, or None."""

    @property
    def weighings(self) -> list[list[str]]:
        """The prompts of each request with prompts; LiteLLM sends a single one as a string."""
        sent = [each.body["prompt"] for each in self.requests if "prompt" in each.body]
        return [[each] if isinstance(each, str) else each for each in sent]

    def respond(self, request: Any) -> Behaviour:
        if "prompt" in request.body:
            self.requests.append(request)
            return self._weighed
        if "messages" in request.body and "model" in request.body and "seed" in request.body:
            return super().respond(request)
        self.requests.append(request)
        return self._tokenized

    def _tokenized(self, handler: Handler) -> None:
        """Word a conversation as tokens, or tokens as text; their numbers are characters'."""
        body = handler.request_body
        if self.template is None:
            error(404, "Not Found")(handler)
        elif handler.path == "/apply-template" and self.echoes.grammars == "obeyed":
            handler.reply(
                200, json.dumps({"prompt": self.template(body["messages"], True)}).encode()
            )
        elif self.echoes.grammars == "obeyed":
            handler.reply(200, json.dumps({"tokens": [], "content": ""}).encode())
        elif handler.path == "/tokenize":
            try:
                text = self.template(body["messages"], body.get("add_generation_prompt", True))
            except ValueError as refusal:
                return error(400, str(refusal))(handler)
            handler.reply(200, json.dumps({"tokens": [*map(ord, text)]}).encode())
        elif handler.path == "/detokenize":
            handler.reply(200, json.dumps({"prompt": "".join(map(chr, body["tokens"]))}).encode())
        else:
            error(404, "Not Found")(handler)

    def _weighed(self, handler: Handler) -> None:
        body, echoes = handler.request_body, self.echoes
        if handler.path != "/v1/completions":
            return error(404, "Not Found")(handler)
        if body.get("echo") and echoes.echo == "refused":
            return error(500, "Only no echo is supported", "server_error")(handler)
        if not body["max_tokens"] and not echoes.nothing:
            return error(400, "max_tokens must be at least 1, got 0.", "BadRequestError")(handler)
        if body.get("grammar") and echoes.grammars != "ignored":
            return self._forced(handler)
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [self._choice(i, p, body) for i, p in enumerate(prompts)]
        counts = sum(len(self.speaker.tokens(prompt)) for prompt in prompts)
        made = len(prompts) * body["max_tokens"]
        usage = {"prompt_tokens": counts, "completion_tokens": made, "total_tokens": counts + made}
        reply = {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000}
        reply |= {"model": body["model"]} | ({"usage": usage} if echoes.counts else {})
        reply["choices"] = choices[::-1] if echoes.reversed else choices
        handler.reply(200, json.dumps(reply).encode())

    def _forced(self, handler: Handler) -> None:
        """Generate text that a grammar allows, with the end token of llama.cpp."""
        body = handler.request_body
        text = json.loads(body["grammar"].removeprefix("root ::= "))
        before, tokens = self.speaker.tokens(body["prompt"]), self.speaker.tokens(text)
        said = self.speaker.log_probabilities([*before, *tokens])[len(before) :]
        if self.echoes.grammars == "masked":
            said = [0.0] * len(said)
        told = [{"token": t, "logprob": p} for t, p in zip(tokens, said, strict=True)]
        told.append({"token": "", "logprob": -0.5})
        choice = {"index": 0, "text": text, "logprobs": {"content": told}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(before), "completion_tokens": len(told), "total_tokens": 0}
        reply = {"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000}
        reply |= {"model": body["model"], "usage": usage, "choices": [choice]}
        handler.reply(200, json.dumps(reply).encode())

    def _choice(self, index: int, prompt: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the choice for one prompt; the generated token is always the same."""
        echoes = self.echoes
        begins = echoes.begins if body.get("add_special_tokens", True) else ""
        tokens = [*self.speaker.tokens(begins + prompt)]
        said = [*self.speaker.log_probabilities(tokens)]
        made = [echoes.special or " the"] * body["max_tokens"]
        said += [-0.25] * len(made)
        text = prompt + "".join(made if not echoes.special else [])
        if echoes.echo == "ignored":
            tokens, said, text = [], said[len(tokens) :], "".join(made)
        tokens += made
        places = [*accumulate(map(len, tokens), initial=0)][:-1]
        found = {"tokens": tokens, "token_logprobs": said, "top_logprobs": None}
        found["text_offset"] = places if echoes.offsets else None
        found = None if self.tampered is None else found | self.tampered
        return {"index": index, "text": text, "logprobs": found, "finish_reason": "length"}
