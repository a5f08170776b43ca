"""What models take: found out once from what their servers refuse, and kept for the model.

There are chat templates without messages of the system, models that sample as they like, and
servers that give a limit of tokens another name. What is refused is asked for otherwise, and the
user is told where the answers are then others than was asked for.
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

OLLAMA_HERE = "http://localhost:11434"

LEAST_CONTEXT = 16_384
"""Tokens of a context that Ollama is asked for at least: what a model is loaded with costs memory,
and another context has it loaded again, which takes seconds."""

CHARACTERS_PER_TOKEN = 3
"""Fewer than there are, so that a prompt is not held for shorter than it is."""

SHORT_TIMEOUT = 10.0
"""Seconds for a server to say something that no model is asked for."""

MARKED = ("anthropic", "bedrock", "vertex_ai", "openrouter", "databricks")
"""Providers that keep what a prompt begins with only where a mark says how far. Others do it by
themselves, or, as for Gemini, by another request that has to be paid for."""

LIMITS = ("max_tokens", "max_completion_tokens")

PARAMETERS = ("temperature", "top_p", "top_k", "seed", "logprobs", "reasoning_effort")
"""What can be left out of a request."""

OTHERWISE = {"reasoning_effort": "(?:reasoning_effort|thinking|reasoning)"}
"""Parameters that servers have other names for."""

DECIDING = ("temperature", "top_p", "top_k", "reasoning_effort")
"""Those of them without which answers are others than was asked for."""

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
"""How chat templates and servers say that they take no messages of the system."""

NOT_BEGUN = re.compile(
    r"(?:assistant|response)[\w ]* prefill|must end with a user message"
    r"|expected last role user|last message must (?:be|have|come)[\w '\"]* (?:the )?'?\"?user",
    re.IGNORECASE,
)
"""How servers say that nobody may begin the answer of a model."""

BEGIN_WITH = "Begin your answer with exactly these lines, and go on from there:\n\n{begun}"


@dataclass
class ModelLimits:
    """What a model was found to take, so that not every question fails first."""

    characters: int | None = None
    """Of a prompt: longer ones are shortened."""
    tokens: int | None = None
    """Of an answer: more are not asked for."""
    system: bool = True
    """Whether it takes messages of the system; else the user says them first."""
    begun: bool = True
    """Whether it goes on with an answer that was begun for it."""
    limit: str = LIMITS[0]
    """The name of the parameter that says how many tokens an answer may have."""
    refused: set[str] = field(default_factory=set)
    """Parameters that it does not take."""
    checked: bool = False
    """Whether a request was compared with the arguments that LiteLLM got."""
    context: int | None = None
    """Tokens of prompt and answer together that Ollama is asked to hold."""
    longest_context: int | None = None
    """Tokens that the model can hold, where Ollama says it."""


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


def adapted(limits: ModelLimits, asked: Mapping[str, Any], told: str, param: str) -> str | None:
    """Learn from a refusal how to word the next request.

    Args:
        limits: The limits of the model, which are updated.
        asked: The arguments of the refused request; another thread may have updated `limits` since.
        told: The server's message.
        param: The parameter at fault, if the error response names it, else "".

    Returns:
        A note for the user, "" if the change has no effect on answers, None if the refusal does
        not say how to ask.
    """
    roles = [message["role"] for message in asked["messages"]]
    if "system" in roles and NO_SYSTEM.search(told):
        limits.system = False
        return ""
    if roles[-1] == "assistant" and NOT_BEGUN.search(told):
        limits.begun = False
        return "does not accept a begun answer: the prompt asks for these first lines instead"
    if LIMITS[0] in asked and LIMITS[1] in told and REFUSES.search(told):
        limits.limit = LIMITS[1]
        return ""
    if param in PARAMETERS and param in asked:
        named = [param]
    else:
        words = {name: rf"\b{OTHERWISE.get(name, name)}\b" for name in PARAMETERS if name in asked}
        named = [name for name, pattern in words.items() if re.search(pattern, told)]
        if not named or not REFUSES.search(told):
            return None
    if "cannot both" in told:
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
    """Say what is missing where a model does not take parameters, "" where that changes nothing."""
    named = [name for name in names if name in DECIDING]
    return f"takes no {' and no '.join(named)}: left to the model" if named else ""


def worded(
    messages: Sequence[Message], limits: ModelLimits, *, marked: bool = False
) -> list[dict[str, Any]]:
    """Return messages as the model takes them, with a mark where what is stable ends if wanted."""
    said = list(messages)
    if said[-1].role == "assistant" and not limits.begun:
        begun = BEGIN_WITH.format(begun=said.pop().content)
        said[-1] = said[-1].model_copy(update={"content": f"{said[-1].content}\n\n{begun}"})
    if not limits.system:
        first = [message.content for message in said if message.role == "system"]
        said = [message for message in said if message.role != "system"]
        text = "".join(f"{each}\n\n" for each in first)
        changed = {"content": text + said[0].content, "stable": len(text) + said[0].stable}
        said[0] = said[0].model_copy(update=changed)
    return [_marked(message) if marked else message.model_dump() for message in said]


def _marked(message: Message) -> dict[str, Any]:
    """Return a message in two parts, the first of which may be kept by the provider."""
    text, stable = message.content, message.stable
    if not 0 < stable < len(text):
        return message.model_dump()
    kept = {"type": "text", "text": text[:stable], "cache_control": {"type": "ephemeral"}}
    return {"role": message.role, "content": [kept, {"type": "text", "text": text[stable:]}]}


def provider_of(model: str) -> str:
    """Return the provider that a model's name begins with, "" where it names none."""
    return model.partition("/")[0] if "/" in model else ""


def chat_model(model: str) -> str:
    """Return the name by which LiteLLM asks for an answer in a conversation.

    By its other name Ollama is sent a single text, and nobody learns that its answer was cut.
    """
    if provider_of(model) == OLLAMA[0]:
        return f"{OLLAMA[1]}/{model.partition('/')[2]}"
    return model


def ollama_address(api_base: str | None) -> str:
    """Return where Ollama is, as it is named or as LiteLLM looks for it."""
    found = api_base or os.environ.get("OLLAMA_API_BASE") or OLLAMA_HERE
    return found.rstrip("/").removesuffix("/v1")


def find_context(limits: ModelLimits, model: str, address: str, client: "httpx.Client") -> None:
    """Ask Ollama once how much a model can hold, and how much its author wants it to hold."""
    import httpx

    if limits.longest_context is not None:
        return
    limits.longest_context = 0  # which is not known
    try:
        body = {"model": model.partition("/")[2]}
        response = client.post(f"{address}/api/show", json=body, timeout=SHORT_TIMEOUT)
        told = response.raise_for_status().json()
        facts, wanted = told.get("model_info") or {}, str(told.get("parameters") or "")
    except (httpx.HTTPError, ValueError, AttributeError):
        return  # whatever is wrong shows when it is asked
    lengths = [n for name, n in facts.items() if name.endswith(".context_length")]
    if lengths and isinstance(lengths[0], int):
        limits.longest_context = lengths[0]
    if found := re.search(r"^num_ctx\s+(\d+)", wanted, re.MULTILINE):
        limits.context = int(found[1])


def context_for(limits: ModelLimits, characters: int, answer: int) -> int:
    """Return how many tokens Ollama is to hold for a prompt and its answer.

    It is not less than before, as another context has the model loaded again.
    """
    wanted = characters // CHARACTERS_PER_TOKEN + answer
    context = max(LEAST_CONTEXT, limits.context or 0)
    while context < wanted:
        context *= 2
    limits.context = min(context, limits.longest_context or context)
    return limits.context
