"""The limits of models, learned once from rejected requests and kept per model.

Some chat templates have no system messages, some models fix their sampling parameters, and some
servers use another name for the token limit. Rejected requests are adapted, and the user gets a
note if the adaptation changes the answers.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cwm_cli.search.contracts import Message, Usage

if TYPE_CHECKING:
    import httpx

OLLAMA = ("ollama", "ollama_chat")
"""Ollama, by LiteLLM's names for its two endpoints."""

CHARACTERS_PER_TOKEN = 3
"""A low estimate, so that the tokens of a prompt are not underestimated."""

SHORT_TIMEOUT = 10.0
"""Timeout in seconds for requests that need no model."""

MARKED = ("anthropic", "bedrock", "vertex_ai", "openrouter", "databricks")
"""Providers that cache the start of a prompt only up to an explicit mark. Other providers cache it
automatically or, as Gemini, with a separate paid request."""

LIMITS = ("max_tokens", "max_completion_tokens")

DECIDING = ("temperature", "top_p", "top_k", "reasoning_effort")
"""Parameters that change the answers if a request omits them."""

SENT_AS: Mapping[str, frozenset[str]] = {
    "temperature": frozenset({"temperature"}),
    "top_p": frozenset({"topp", "p"}),
    "top_k": frozenset({"topk", "k"}),
    "reasoning_effort": frozenset(
        {"reasoningeffort", "reasoning", "effort", "thinking", "think", "thinkingconfig"}
    ),
}
"""Names of the deciding parameters in requests, in lower case and without underscores."""

REFUSES = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|not (?:support|permitted|allowed|available)"
    r"|only the default|deprecated|cannot both|invalid (?:parameter|argument)",
    re.IGNORECASE,
)

NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt|instruction)s? (?:is |are )?(?:not |un)(?:supported|enabled)"
    r"|not support '?(?:the )?system|developer instruction is not enabled"
    r"|only user(?:,| and) (?:assistant|model)[\w ,]* roles? (?:is|are) supported"
    r"|roles must alternate",
    re.IGNORECASE,
)
"""Messages of chat templates and servers that accept no system messages."""

NO_PREFILL = re.compile(
    r"(?:assistant|response)[\w ]* prefill|must end with a user message"
    r"|expected last role user|last message must (?:be|have|come)[\w '\"]* (?:the )?'?\"?user",
    re.IGNORECASE,
)
"""Messages of servers that do not continue a prefilled answer."""

BEGIN_WITH = "Begin your answer with exactly these lines, and continue from there:\n\n{prefill}"


@dataclass
class ModelLimits:
    """The learned limits of a model, so that later requests do not fail in the same way."""

    characters: int | None = None
    """Maximum characters of a prompt; longer prompts are shortened."""
    tokens: int | None = None
    """Maximum tokens of an answer."""
    system: bool = True
    """Whether it accepts system messages; if not, they are added to the first user message."""
    prefill: bool = True
    """Whether it continues a prefilled answer."""
    limit: str = LIMITS[0]
    """Name of the parameter that limits the tokens of an answer."""
    refused: set[str] = field(default_factory=set)
    """Parameters that it does not accept."""
    checked: bool = False
    """Whether a request was compared with the arguments that LiteLLM got."""
    context: int | None = None
    """Tokens of prompt and answer together that Ollama is asked to hold."""
    longest_context: int | None = None
    """Maximum context of the model in tokens, if Ollama reports it."""


@dataclass
class ScoringState:
    """How a server returns log-probabilities of given texts, and the usage of scoring so far."""

    can: bool | None = None
    """Whether the server returns them; None before the first request."""
    generated: int = 0
    """Tokens that the server generates after each prompt: some servers refuse 0."""
    forced: bool = False
    """Whether the server echoes no prompt, but generates the text under a grammar that allows
    only this text."""
    format: Any = None
    """The chat format (`scoring.Format`) of the server."""
    usage: Usage = field(default_factory=Usage)


def adapt(limits: ModelLimits, asked: Mapping[str, Any], message: str, param: str) -> str | None:
    """Adapt the limits of a model to a rejected request.

    Args:
        limits: The limits of the model, which are updated.
        asked: The arguments of the refused request; another thread may have updated `limits` since.
        message: The server's message.
        param: The parameter at fault, if the error response names it, else "".

    Returns:
        A note for the user, "" if the change has no effect on answers, None if the message does not
        show how to adapt the request.
    """
    roles = [each["role"] for each in asked["messages"]]
    if "system" in roles and NO_SYSTEM.search(message):
        limits.system = False
        return ""
    if roles[-1] == "assistant" and NO_PREFILL.search(message):
        limits.prefill = False
        return "does not continue a prefilled answer: the prompt asks for these first lines instead"
    if LIMITS[0] in asked and LIMITS[1] in message and REFUSES.search(message):
        limits.limit = LIMITS[1]
        return ""
    # parameters that a request can omit
    parameters = ("temperature", "top_p", "top_k", "seed", "logprobs", "reasoning_effort")
    if param in parameters and param in asked:
        named = [param]
    else:
        # patterns of parameters that servers call by other names
        patterns = {"reasoning_effort": "(?:reasoning_effort|thinking|reasoning)"}
        words = {name: rf"\b{patterns.get(name, name)}\b" for name in parameters if name in asked}
        named = [name for name, pattern in words.items() if re.search(pattern, message)]
        if not named or not REFUSES.search(message):
            return None
    if "cannot both" in message:
        named = named[-1:]
    limits.refused.update(named)
    return left_out(named)


def dropped(asked: Mapping[str, Any], sent: Collection[str]) -> list[str]:
    """Return the parameters that LiteLLM dropped because it knows that a model refuses them.

    Args:
        asked: The arguments of LiteLLM.
        sent: The names in the body of the request, see `transport.sent_names`.
    """
    if not sent:
        return []
    wanted = [n for n in DECIDING if n in asked and (n, asked[n]) != ("temperature", 1)]
    return [name for name in wanted if not SENT_AS[name] & set(sent)]


def left_out(names: Sequence[str]) -> str:
    """Return a note on parameters that a model rejects, "" if they do not change answers."""
    named = [name for name in names if name in DECIDING]
    return f"does not accept {' or '.join(named)}: left to the model" if named else ""


def format_messages(
    messages: Sequence[Message], limits: ModelLimits, *, marked: bool = False
) -> list[dict[str, Any]]:
    """Return messages in the form that the model accepts, with cache marks if `marked`."""
    sent = list(messages)
    if sent[-1].role == "assistant" and not limits.prefill:
        prefill = BEGIN_WITH.format(prefill=sent.pop().content)
        sent[-1] = sent[-1].model_copy(update={"content": f"{sent[-1].content}\n\n{prefill}"})
    if not limits.system:
        first = [message.content for message in sent if message.role == "system"]
        sent = [message for message in sent if message.role != "system"]
        text = "".join(f"{each}\n\n" for each in first)
        changed = {"content": text + sent[0].content, "stable": len(text) + sent[0].stable}
        sent[0] = sent[0].model_copy(update=changed)
    return [_marked(message) if marked else message.model_dump() for message in sent]


def _marked(message: Message) -> dict[str, Any]:
    """Return a message in two parts with a cache mark after its stable start."""
    text, stable = message.content, message.stable
    if not 0 < stable < len(text):
        return message.model_dump()
    kept = {"type": "text", "text": text[:stable], "cache_control": {"type": "ephemeral"}}
    return {"role": message.role, "content": [kept, {"type": "text", "text": text[stable:]}]}


def provider_of(model: str) -> str:
    """Return the provider in a model's name, "" if it names none."""
    return model.partition("/")[0] if "/" in model else ""


def chat_model(model: str) -> str:
    """Return the name that makes LiteLLM use the chat endpoint.

    With the provider `ollama`, LiteLLM sends a single text and does not report cut answers.
    """
    if provider_of(model) == OLLAMA[0]:
        return f"{OLLAMA[1]}/{model.partition('/')[2]}"
    return model


def ollama_address(api_base: str | None) -> str:
    """Return the address of Ollama: the given one, or LiteLLM's default."""
    found = api_base or os.environ.get("OLLAMA_API_BASE") or "http://localhost:11434"
    return found.rstrip("/").removesuffix("/v1")


def find_context(limits: ModelLimits, model: str, address: str, client: "httpx.Client") -> None:
    """Query Ollama once for the maximum context of a model and the context in its model file."""
    import httpx

    if limits.longest_context is not None:
        return
    limits.longest_context = 0  # unknown
    try:
        body = {"model": model.partition("/")[2]}
        response = client.post(f"{address}/api/show", json=body, timeout=SHORT_TIMEOUT)
        found = response.raise_for_status().json()
        facts, wanted = found.get("model_info") or {}, str(found.get("parameters") or "")
    except (httpx.HTTPError, ValueError, AttributeError):
        return  # the request to the model will report the cause
    lengths = [n for name, n in facts.items() if name.endswith(".context_length")]
    if lengths and isinstance(lengths[0], int):
        limits.longest_context = lengths[0]
    if chosen := re.search(r"^num_ctx\s+(\d+)", wanted, re.MULTILINE):
        limits.context = int(chosen[1])


def context_for(limits: ModelLimits, characters: int, answer: int) -> int:
    """Return the number of tokens of Ollama's context for a prompt and its answer.

    The context never shrinks, because a change reloads the model.
    """
    wanted = characters // CHARACTERS_PER_TOKEN + answer
    # Minimum context in tokens to request from Ollama. A larger context needs more memory, and a
    # changed context reloads the model, which takes seconds.
    min_context = 16_384
    context = max(min_context, limits.context or 0)
    while context < wanted:
        context *= 2
    limits.context = min(context, limits.longest_context or context)
    return limits.context
