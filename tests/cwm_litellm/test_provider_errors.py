"""Error responses of real providers and engines, served on the loopback, through LiteLLM.

Each body has the form that the provider or engine sends, with identifiers shortened.
"""

import json
from typing import Any, NamedTuple

import pytest

from cwm_cli.search.contracts import GENERATE, Message, Move, Request, UnansweredError
from cwm_litellm.backend import LiteLLM
from cwm_litellm.failures import ErrorResponse, classify, error_response_of
from openai_server import Handler, OpenAIServer

OPENAI, AZURE = "openai/gpt-4o-mini", "azure/my-deployment"
ANTHROPIC, GEMINI = "anthropic/claude-3-5-haiku-20241022", "gemini/gemini-2.0-flash"
MISTRAL, OPENROUTER = "mistral/mistral-small-latest", "openrouter/meta-llama/llama-3-70b"
OLLAMA, VLLM = "ollama/llama3", "hosted_vllm/my-model"
LLAMA_CPP, LM_STUDIO = "llamafile/any", "lm_studio/any"
KEYS = ("OPENAI", "AZURE", "ANTHROPIC", "GEMINI", "MISTRAL", "OPENROUTER")


class Case(NamedTuple):
    """An error response, the kind of failure and, in brackets in a message, its reason."""

    model: str
    status: int
    body: Any
    kind: str
    pause: float | None = None


def openai(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def google(code: int, status: str, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    told = {"code": code, "message": message, "status": status}
    return {"error": told | ({"details": list(details)} if details else {})}


def quota(limit: str, delay: str) -> tuple[dict[str, Any], ...]:
    rpc = "type.googleapis.com/google.rpc"
    violation = {"quotaMetric": "generate_content_requests", "quotaId": limit, "quotaValue": "15"}
    return (
        {"@type": f"{rpc}.QuotaFailure", "violations": [violation]},
        {"@type": f"{rpc}.RetryInfo", "retryDelay": delay},
    )


def flat(message: Any, kind: str, code: str | int | None = None) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


EXHAUSTED = "You exceeded your current quota, please check your plan and billing details."
OPENAI_CONTEXT = (
    "This model's maximum context length is 128000 tokens. However, your messages resulted in "
    "130000 tokens. Please reduce the length of the messages."
)
CASES = {
    "openai quota": Case(
        OPENAI, 429, openai(EXHAUSTED, "insufficient_quota", "insufficient_quota"), "NO_CREDIT"
    ),
    "openai rate": Case(
        OPENAI,
        429,
        openai("Rate limit reached for gpt-4o-mini", "requests", "rate_limit_exceeded"),
        "RATE_LIMIT",
    ),
    "openai larger than the rate": Case(
        OPENAI,
        429,
        openai("Request too large for gpt-4o on tokens per min (TPM)", "tokens", None),
        "TOO_LONG",
    ),
    "openai key": Case(
        OPENAI,
        401,
        openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key"),
        "WRONG_KEY",
    ),
    "openai model": Case(
        OPENAI,
        404,
        openai("The model `x` does not exist", "invalid_request_error", "model_not_found"),
        "NO_MODEL",
    ),
    "openai context": Case(
        OPENAI,
        400,
        openai(OPENAI_CONTEXT, "invalid_request_error", "context_length_exceeded", "messages"),
        "TOO_LONG",
    ),
    "openai policy": Case(
        OPENAI,
        400,
        openai(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            "invalid_request_error",
            "invalid_prompt",
        ),
        "FILTERED",
    ),
    "openai country": Case(
        OPENAI,
        403,
        openai(
            "Country, region, or territory not supported",
            "request_forbidden",
            "unsupported_country_region_territory",
        ),
        "REFUSED",
    ),
    "openai overloaded": Case(
        OPENAI, 503, openai("The server is overloaded", "server_error", None), "BROKEN"
    ),
    "azure filter": Case(
        AZURE,
        400,
        {
            "error": {
                "message": "The response was filtered due to the prompt triggering a policy.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {
                    "code": "ResponsibleAIPolicyViolation",
                    "content_filter_result": {"jailbreak": {"filtered": True, "detected": True}},
                },
            }
        },
        "FILTERED",
    ),
    "azure deployment": Case(
        AZURE,
        404,
        {
            "error": {
                "code": "DeploymentNotFound",
                "message": "The API deployment for this resource does not exist.",
            }
        },
        "NO_MODEL",
    ),
    "azure key": Case(
        AZURE,
        401,
        {
            "error": {
                "code": "401",
                "message": "Access denied due to invalid subscription key or wrong API endpoint.",
            }
        },
        "WRONG_KEY",
    ),
    "azure rate": Case(
        AZURE,
        429,
        {
            "error": {
                "code": "429",
                "message": "Requests to the ChatCompletions operation have exceeded the token rate "
                "limit. Please retry after 6 seconds.",
            }
        },
        "RATE_LIMIT",
    ),
    "anthropic credit": Case(
        ANTHROPIC,
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing to upgrade or purchase credits.",
        ),
        "NO_CREDIT",
    ),
    "anthropic key": Case(
        ANTHROPIC, 401, anthropic("authentication_error", "invalid x-api-key"), "WRONG_KEY"
    ),
    "anthropic model": Case(
        ANTHROPIC, 404, anthropic("not_found_error", "model: claude-9"), "NO_MODEL"
    ),
    "anthropic context": Case(
        ANTHROPIC,
        400,
        anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        "TOO_LONG",
    ),
    "anthropic size": Case(
        ANTHROPIC,
        413,
        anthropic("request_too_large", "Request exceeds the maximum size"),
        "TOO_LONG",
    ),
    "anthropic rate": Case(
        ANTHROPIC,
        429,
        anthropic("rate_limit_error", "This request would exceed your rate limit"),
        "RATE_LIMIT",
    ),
    "anthropic overloaded": Case(
        ANTHROPIC, 529, anthropic("overloaded_error", "Overloaded"), "BROKEN"
    ),
    "gemini rate": Case(
        GEMINI,
        429,
        google(
            429,
            "RESOURCE_EXHAUSTED",
            EXHAUSTED,
            *quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "23.5s"),
        ),
        "RATE_LIMIT",
        pause=23.5,
    ),
    "gemini quota": Case(
        GEMINI,
        429,
        google(
            429,
            "RESOURCE_EXHAUSTED",
            EXHAUSTED,
            *quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "40s"),
        ),
        "NO_CREDIT",
        pause=40,
    ),
    "gemini key": Case(
        GEMINI,
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
            },
        ),
        "WRONG_KEY",
    ),
    "gemini model": Case(
        GEMINI,
        404,
        google(404, "NOT_FOUND", "models/gemini-99 is not found for API version v1beta"),
        "NO_MODEL",
    ),
    "gemini context": Case(
        GEMINI,
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200000) exceeds the maximum number of tokens allowed "
            "(1048576).",
        ),
        "TOO_LONG",
    ),
    "gemini overloaded": Case(
        GEMINI, 503, google(503, "UNAVAILABLE", "The model is overloaded."), "BROKEN"
    ),
    "mistral key": Case(MISTRAL, 401, {"detail": "Unauthorized"}, "WRONG_KEY"),
    "mistral model": Case(
        MISTRAL, 400, flat("Invalid model: mistral-foo", "invalid_model", "1500"), "NO_MODEL"
    ),
    "mistral context": Case(
        MISTRAL,
        400,
        flat(
            "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 "
            "maximum context length",
            "invalid_request_error",
            "3051",
        ),
        "TOO_LONG",
    ),
    "mistral capacity": Case(
        MISTRAL,
        429,
        flat(
            "Service tier capacity exceeded for this model.",
            "service_tier_capacity_exceeded",
            "3505",
        ),
        "RATE_LIMIT",
    ),
    "mistral field": Case(
        MISTRAL,
        422,
        flat(
            {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "foo"],
                        "msg": "Extra inputs are not permitted",
                        "input": 5,
                    }
                ]
            },
            "invalid_request_error",
        ),
        "REFUSED",
    ),
    "ollama model": Case(
        OLLAMA, 404, {"error": "model 'llama3' not found, try pulling it first"}, "NO_MODEL"
    ),
    "ollama memory": Case(
        OLLAMA,
        500,
        {"error": "model requires more system memory (5.6 GiB) than is available (1.2 GiB)"},
        "BROKEN",
    ),
    "vllm model": Case(
        VLLM, 404, flat("The model `x` does not exist.", "NotFoundError", 404), "NO_MODEL"
    ),
    "vllm context, before 0.10": Case(
        VLLM, 400, flat(OPENAI_CONTEXT, "BadRequestError", 400), "TOO_LONG"
    ),
    "vllm context, from 0.10": Case(
        VLLM, 400, {"error": {k: v for k, v in flat(OPENAI_CONTEXT, "x").items()}}, "TOO_LONG"
    ),
    "vllm refused": Case(
        VLLM, 400, flat("logprobs must be non-negative", "BadRequestError", 400), "REFUSED"
    ),
    "llama.cpp context": Case(
        LLAMA_CPP,
        400,
        {
            "error": {
                "code": 400,
                "message": "request (5000 tokens) exceeds the available context size (4096 "
                "tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }
        },
        "TOO_LONG",
    ),
    "llama.cpp loading": Case(
        LLAMA_CPP,
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        "BROKEN",
    ),
    "llama.cpp key": Case(
        LLAMA_CPP,
        401,
        {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}},
        "WRONG_KEY",
    ),
    "lm studio context": Case(
        LM_STUDIO,
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context overflows. However, the "
            "model is loaded with context length of only 4096 tokens, which is not enough."
        },
        "TOO_LONG",
    ),
    "lm studio model": Case(
        LM_STUDIO,
        404,
        openai('Model "x" not found.', "invalid_request_error", "model_not_found", "model"),
        "NO_MODEL",
    ),
    "openrouter credit": Case(
        OPENROUTER, 402, {"error": {"message": "Insufficient credits", "code": 402}}, "NO_CREDIT"
    ),
    "openrouter provider": Case(
        OPENROUTER,
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": json.dumps(
                        openai(OPENAI_CONTEXT, "invalid_request_error", "context_length_exceeded")
                    ),
                    "provider_name": "OpenAI",
                },
            },
            "user_id": "user_1",
        },
        "TOO_LONG",
    ),
    "openrouter moderation": Case(
        OPENROUTER,
        403,
        {
            "error": {
                "message": "Your chosen model requires moderation and your input was flagged: "
                "content policy",
                "code": 403,
                "metadata": {"reasons": ["violence"], "flagged_input": "..."},
            }
        },
        "FILTERED",
    ),
    "an error page of a proxy": Case(
        OPENAI, 502, "<html><h1>502 Bad Gateway</h1></html>", "BROKEN"
    ),
    "an empty body": Case(ANTHROPIC, 429, "", "RATE_LIMIT"),
    "a body of another shape": Case(VLLM, 400, ["no", {"error": 5}], "REFUSED"),
    "fields of other types": Case(
        GEMINI,
        500,
        {"error": {"code": {}, "details": [1, {"violations": 2}], "message": 7}},
        "BROKEN",
    ),
}


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(f"{name}_API_KEY", "a-very-secret-key")
    monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")


def failure(case: Case, *, stream: bool = False) -> UnansweredError:
    """Return the error of a question if the server sends this response."""

    def refuse(handler: Handler) -> None:
        text = case.body if isinstance(case.body, str) else json.dumps(case.body)
        handler.reply(case.status, text.encode())

    class Server(OpenAIServer):
        def respond_to(self, path: str, request: Any) -> Any:
            return refuse

    with Server([refuse]) as server:
        root = server.url.removesuffix("/v1")
        base = root if case.model in (ANTHROPIC, GEMINI, OLLAMA, AZURE) else server.url
        asked = Request(
            (Message(role="user", content="Write one."),), 7, Move(GENERATE), problem=None
        )
        backend = LiteLLM(case.model, api_base=base, retries=0, timeout=20, stream=stream)
        with pytest.raises(UnansweredError) as caught:
            done = backend.complete(asked)
            if done.lacking:
                raise UnansweredError(done.lacking, None)
    return caught.value


@pytest.fixture
def seen(monkeypatch):
    """Return the errors that were classified."""
    errors = []

    def note(error, *more):
        errors.append(error)
        return classify(error)

    monkeypatch.setattr("cwm_litellm.asking.classify", note)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_error_responses_are_classified_by_their_codes(seen, stream):
    wrong = {}
    for name, case in CASES.items():
        seen.clear()
        words = str(failure(case, stream=stream))
        found, refusal = classify(seen[-1]).name, error_response_of(seen[-1])
        pause = refusal.pause if refusal else None
        if (found, pause) != (case.kind, case.pause) or "\n" in words or "secret" in words:
            wrong[name] = (found, pause, words)
    assert wrong == {}


def test_reason_of_a_refusal_is_the_message_of_the_server():
    reasons = {
        "mistral field": "body.foo: Extra inputs are not permitted",
        "vllm refused": "logprobs must be non-negative",
        "openai country": "Country, region, or territory not supported",
    }
    for name, reason in reasons.items():
        assert f"refused the request ({reason}): change" in str(failure(CASES[name])), name


def test_refusal_names_the_parameter_at_fault(seen):
    failure(CASES["mistral field"])
    assert error_response_of(seen[-1]) == ErrorResponse(
        422,
        frozenset({"invalid_request_error"}),
        "foo",
        "body.foo: Extra inputs are not permitted",
    )


def test_misleading_message_does_not_overrule_a_code():
    """The texts name a context length, a filter and a quota; the codes say otherwise."""
    words = "maximum context length, content filter, quota: check your credit balance is too low"
    for code, message in {
        "invalid_api_key": "openai refused the key",
        "model_not_found": "openai has no model",
        "rate_limit_exceeded": "openai: rate limit still exceeded",
    }.items():
        case = Case(OPENAI, 400, openai(words, "invalid_request_error", code), "")
        assert str(failure(case)).startswith(message), code
