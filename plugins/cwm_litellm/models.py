"""Providers, keys and prices of models, read without importing LiteLLM if possible.

A wrong name, a missing key or an unknown price is reported before data are recorded for nothing.
Prices come from LiteLLM's price list, a JSON file in its package. LiteLLM itself is only imported
for providers that are not in `COMMON`.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import AnswerLength
from cwm_litellm.library import load

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
"""Providers that require a key, and the environment variables that may hold it."""

COMMON = (
    *KEYS,
    *("azure", "bedrock", "databricks", "hosted_vllm", "huggingface", "llamafile", "lm_studio"),
    *("nvidia_nim", "ollama", "ollama_chat", "vertex_ai"),
)
"""Common providers; for others LiteLLM is imported, which takes three seconds."""

BY_SIZE = ("fireworks_ai", "together_ai")
"""Providers that price models by size, so that unlisted models have a price too."""

USUAL_LENGTH, THINKING_LENGTH = (1_500, 16_384), (6_000, 32_768)
"""Tokens of answers, usual and longest: a program takes about 1,500, a model that reasons before it
writes takes several times as many."""

PRICES = "model_prices_and_context_window_backup.json"
"""The price list in LiteLLM's package; if it is missing, prices are unknown."""


def check_model(model: str, api_base: str | None = None) -> None:
    """Raise for a model of an unknown provider, or of a provider whose key is missing."""
    provider = provider_of(model)
    if provider is None or model.endswith("/"):
        if not (api_base and "/" not in model):  # a server may name its model as it likes
            raise CwmError(f"unknown model {model!r}: {hint(model)}")
        return
    if key := missing_key(provider, api_base):
        raise CwmError(f"no key for {provider}: set {key}")


def missing_key(provider: str, api_base: str | None = None) -> str | None:
    """Return the environment variable to set for a provider, None if no key is missing."""
    if api_base and provider != "openai":  # such a server may not require a key
        return None
    names = KEYS.get(provider, ())
    return names[0] if names and not any(map(os.environ.get, names)) else None


def check_price(model: str) -> None:
    """Raise for a model whose price is certainly unknown."""
    known = prices()
    names = (model, model.partition("/")[2])
    sure = provider_of(model) in KEYS.keys() - set(BY_SIZE) and "ft:" not in model
    if known and sure and not known.keys() & set(names):
        provider, _, name = model.partition("/")
        listed = (n for n, price in known.items() if price.get("litellm_provider") == provider)
        close = get_close_matches(name, [n.removeprefix(f"{provider}/") for n in listed], n=1)
        hint = f"did you mean {provider}/{close[0]}?" if close else "leave it out for this model"
        raise CwmError(
            f"--max-cost needs a known price, and {model} is not in the price list: {hint}"
        )


def price(model: str, prompt_tokens: int, answer_tokens: int) -> float | None:
    """Return the list price of a request in US dollars, None if it is unknown.

    Tokens that a provider reads from its cache cost less, and some models charge more for long
    prompts.
    """
    free = ("ollama", "ollama_chat")  # providers that run on the user's own machine
    if provider_of(model) in free:
        return 0.0
    known = listed(model)
    prompt, answer = (known.get(f"{kind}_cost_per_token") for kind in ("input", "output"))
    if prompt is None or answer is None:
        return None
    return float(prompt) * prompt_tokens + float(answer) * answer_tokens


def answer_length(model: str, max_tokens: int | None = None) -> AnswerLength:
    """Return the usual and the largest number of tokens of an answer, at most `max_tokens`."""
    known = listed(model)
    reasons = bool(known.get("supports_reasoning"))
    usual, most = THINKING_LENGTH if reasons else USUAL_LENGTH
    bounds = [max_tokens or most, known.get("max_output_tokens")]
    most = min(int(bound) for bound in bounds if bound)
    return AnswerLength(min(usual, most), most, reasons)


def listed(model: str) -> Mapping[str, Any]:
    """Return the entry of a model in the price list, by its full name or by its provider's."""
    every, (provider, _, name) = prices(), model.partition("/")
    if model in every:
        return every[model]
    known: Mapping[str, Any] = every.get(name, {})
    return known if known.get("litellm_provider") == provider else {}


def provider_of(model: str) -> str | None:
    """Return the provider of a model, None if it is unknown."""
    provider, separator, _ = model.partition("/")
    if separator:
        return provider if provider in COMMON or provider in providers() else None
    found = prices().get(model, {}).get("litellm_provider")
    return "openai" if found is None and model.startswith("ft:") else found


def address_in_environment(model: str) -> str | None:
    """Return the address of the model's server in the environment variables of its provider."""
    provider = (provider_of(model) or "").removesuffix("_chat").upper()
    names = (f"{provider}_BASE_URL", f"{provider}_API_BASE")
    return next(filter(None, map(os.environ.get, names)), None)


def hint(model: str) -> str:
    """Return how to name a model whose provider is unknown."""
    provider, _, name = model.partition("/")
    close = get_close_matches(provider, sorted(providers()), n=1) if name else []
    if close:
        return f"did you mean {close[0]}/{name}? Write models as PROVIDER/NAME"
    return "write PROVIDER/NAME, such as openai/gpt-4o-mini or ollama/llama3"


@cache
def providers() -> frozenset[str]:
    """Return all providers that LiteLLM knows; imports it."""
    return frozenset(str(getattr(each, "value", each)) for each in load().provider_list)


@cache
def prices() -> Mapping[str, Mapping[str, Any]]:
    """Return the price list by model, empty if LiteLLM has none."""
    package = find_spec("litellm")
    for folder in (package.submodule_search_locations or []) if package else []:
        with suppress(OSError, ValueError):
            found = json.loads((Path(folder) / PRICES).read_text(encoding="utf-8"))
            return {name: each for name, each in found.items() if isinstance(each, dict)}
    return {}
