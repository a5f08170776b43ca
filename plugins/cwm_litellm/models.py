"""What is known of a model without LiteLLM, which takes three seconds to import.

Whatever can be told at once is told before data are recorded for nothing: a provider that there
is not, a key that is not set, a price that nobody knows. Where these files cannot tell, nothing
is said, and LiteLLM says it when it is asked.
"""

import json
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import AnswerLength

KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepinfra": ("DEEPINFRA_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY", "FIREWORKSAI_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshot": ("MOONSHOT_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN", "TOGETHER_API_KEY"),
    "xai": ("XAI_API_KEY",),
}
"""Providers that answer nobody without a key, and the variables that may hold it."""

BY_SIZE = ("fireworks_ai", "together_ai")
"""Providers whose models have a price though they are on no list."""

FREE = ("ollama", "ollama_chat")
"""Providers that are the user's own machine."""

USUAL_LENGTH, THINKING_LENGTH = (1_500, 16_384), (6_000, 32_768)
"""Tokens of answers, usual ones and the longest that are reckoned with: a program takes some 1,500,
and models that think about it several times that."""

PRICES = "model_prices_and_context_window_backup.json"
PROVIDERS = re.compile(r"^class LlmProviders\(.*?^(?=\S)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r'^    \w+ = "([^"]+)"', re.MULTILINE)


def check_model(model: str, api_base: str | None = None) -> None:
    """Refuse a model that nobody provides, or whose provider has no key here."""
    provider = provider_of(model)
    if provider is None or model.endswith("/"):
        if providers() and not (api_base and "/" not in model):  # a server may name its own
            raise CwmError(f"unknown model {model!r}: {hint(model)}")
        return
    names = KEYS.get(provider, ())
    if api_base and provider != "openai":  # such a server need not want a key
        return
    if names and not any(os.environ.get(name) for name in names):
        raise CwmError(f"no key for {provider}: set {names[0]}")


def check_price(model: str) -> None:
    """Refuse a model whose price is surely not known."""
    listed = prices()
    names = (model, model.partition("/")[2])
    sure = provider_of(model) in KEYS.keys() - set(BY_SIZE) and "ft:" not in model
    if listed and sure and not listed.keys() & set(names):
        raise CwmError("--max-cost needs a model of known price: leave it out for this model")


def price(model: str, prompt_tokens: int, answer_tokens: int) -> float | None:
    """Return what so many tokens cost at list price in US dollars, None where it is not known.

    What is read from a provider's cache costs less, and long prompts of some models cost more.
    """
    if provider_of(model) in FREE:
        return 0.0
    known = listed(model)
    prompt, answer = (known.get(f"{kind}_cost_per_token") for kind in ("input", "output"))
    if prompt is None or answer is None:
        return None
    return float(prompt) * prompt_tokens + float(answer) * answer_tokens


def answer_length(model: str, most_tokens: int | None = None) -> AnswerLength:
    """Return how many tokens answers have; `most_tokens` is what a user allows."""
    known = listed(model)
    thinks = bool(known.get("supports_reasoning"))
    usual, most = THINKING_LENGTH if thinks else USUAL_LENGTH
    bounds = [most_tokens or most, known.get("max_output_tokens")]
    most = min(int(bound) for bound in bounds if bound)
    return AnswerLength(min(usual, most), most, thinks)


def listed(model: str) -> Mapping[str, Any]:
    """Return what the list of prices says of a model, by its own name or that at its provider."""
    every, (provider, _, name) = prices(), model.partition("/")
    if model in every:
        return every[model]  # type: ignore[no-any-return]
    known: Mapping[str, Any] = every.get(name, {})
    return known if known.get("litellm_provider") == provider else {}


def provider_of(model: str) -> str | None:
    """Return who provides a model, None where that is not known."""
    provider, separator, _ = model.partition("/")
    if separator:
        return provider if provider in providers() else None
    found = prices().get(model, {}).get("litellm_provider")
    return "openai" if found is None and model.startswith("ft:") else found


def hint(model: str) -> str:
    """Return how to name a model whose provider is not known."""
    provider, _, name = model.partition("/")
    close = get_close_matches(provider, providers(), n=1) if name else []
    if close:
        return f"did you mean {close[0]}/{name}? Models are named PROVIDER/NAME"
    return "name it PROVIDER/NAME, such as openai/gpt-4o-mini or ollama/llama3"


@cache
def providers() -> frozenset[str]:
    """Return the providers that LiteLLM knows, none where its files do not say."""
    text = _shipped("types/utils.py")
    found = PROVIDERS.search(text)
    return frozenset(NAMED.findall(found[0]) if found else ())


@cache
def prices() -> Mapping[str, Any]:
    """Return what LiteLLM's list of prices says of each model, none where there is no list."""
    try:
        found: Mapping[str, Any] = json.loads(_shipped(PRICES))
    except ValueError:
        return {}
    return found


def _shipped(name: str) -> str:
    """Return the text of a file of LiteLLM's package, "" where there is none."""
    package = find_spec("litellm")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / name
        if file.exists():
            return file.read_text(encoding="utf-8")
    return ""
