"""Answers in unusual forms, from a real server on the loopback through LiteLLM."""

import json
import re

import pytest

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import GENERATE, Message, Move, Request, ScoreRequest, UnansweredError
from cwm_litellm.backend import LiteLLM
from openai_server import Behaviour, Handler, OpenAIServer, answer

PRICED = "openai/gpt-4o-mini"  # $0.15 and $0.60 per million tokens
COUNTS = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
COST = 100 * 0.15e-6 + 10 * 0.60e-6
PROGRAM = "the program"
MESSAGES = (Message(role="user", content="Write one."),)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-very-secret-key")


def body(handler: Handler, **fields: object) -> bytes:
    """Return the body of an answer; `fields` replace the usual ones."""
    usual = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": handler.request_body["model"],
        "choices": [choice()],
        "usage": COUNTS,
    }
    return json.dumps(usual | fields).encode()


def choice(content: object = PROGRAM, **fields: object) -> dict[str, object]:
    message = {"role": "assistant", "content": content}
    return {"index": 0, "message": message, "finish_reason": "stop"} | fields


def message(**fields: object) -> dict[str, object]:
    return choice(message={"role": "assistant", "content": PROGRAM} | fields)


def sends(**fields: object) -> Behaviour:
    """Answer with a body; `fields` replace the usual ones."""
    return lambda handler: handler.reply(200, body(handler, **fields))


def ask(behaviour: Behaviour, model=PRICED, **options):
    """Return the completion; one request has to suffice."""
    with OpenAIServer([behaviour]) as server:
        quick = {"api_base": server.url, "timeout": 20, "retries": 0, "backoff": 0.01}
        backend = LiteLLM(model, **quick | options)
        completion = backend.complete(Request(MESSAGES, 7, Move(GENERATE), problem=None))
        assert len(server.requests) == 1
    return completion


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        "100",
        5,
        {},
        COUNTS | {"prompt_tokens": -100},
        COUNTS | {"completion_tokens": -10},
        COUNTS | {"prompt_tokens": {"text": 100}},
        COUNTS | {"completion_tokens": [10]},
        COUNTS | {"prompt_tokens": "many"},
        COUNTS | {"prompt_tokens": True},
        COUNTS | {"prompt_tokens": float("nan")},
        COUNTS | {"prompt_tokens": 10**30},
        {"prompt_tokens": 100},
    ],
    ids=str,
)
def test_answer_with_unreadable_usage_is_kept(usage):
    completion = ask(sends(usage=usage), tokens_per_minute=1e6)
    assert (completion.text, completion.lacking) == (PROGRAM, "")
    assert completion.usage.tokens == 0
    assert completion.usage.cost is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({name: str(count) for name, count in COUNTS.items()}, (100, 10)),
        ({name: float(count) for name, count in COUNTS.items()}, (100, 10)),
        (COUNTS | {"prompt_tokens": 99.5}, (100, 10)),
        (COUNTS | {"completion_tokens": None}, (100, 10)),
        (COUNTS | {"prompt_tokens_details": [1], "completion_tokens_details": "x"}, (100, 10)),
        (COUNTS | {"prompt_tokens_details": {"cached_tokens": -50}}, (100, 10)),
        (COUNTS | {"prompt_tokens_details": {"cached_tokens": 5000}}, (100, 10)),
        (COUNTS | {"completion_tokens_details": {"reasoning_tokens": "x"}}, (100, 10)),
        (
            COUNTS | {"cache_creation_input_tokens": [2], "cost": "free", "more": {"a": []}},
            (100, 10),
        ),
    ],
    ids=str,
)
def test_token_counts_of_odd_types_are_read(usage, tokens):
    completion = ask(sends(usage=usage))
    used = completion.usage
    assert (completion.text, (used.prompt_tokens, used.completion_tokens)) == (PROGRAM, tokens)
    assert used.cost == pytest.approx(COST)
    assert (used.cached_tokens, used.reasoning_tokens) == (0, 0)


def test_usage_details_may_be_texts():
    usage = COUNTS | {
        "prompt_tokens_details": {"cached_tokens": "50"},
        "completion_tokens_details": {"reasoning_tokens": 5.0},
    }
    used = ask(sends(usage=usage)).usage
    assert (used.cached_tokens, used.reasoning_tokens) == (50, 5)
    assert used.cost == pytest.approx(50 * 0.15e-6 + 50 * 0.075e-6 + 10 * 0.60e-6)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "the "}, {"type": "text", "text": "program"}],
        ["the ", "program"],
        [{"type": "text", "text": None}, None, 5, {"type": "text", "text": PROGRAM}],
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "wrong"}]},
            {"type": "text", "text": PROGRAM},
        ],
        {"type": "text", "text": PROGRAM},
    ],
    ids=str,
)
def test_content_parts_are_joined_without_reasoning(content):
    completion = ask(sends(choices=[choice(content)]))
    assert (completion.text, completion.lacking) == (PROGRAM, "")
    assert completion.usage.cost == pytest.approx(COST)


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": choice()},
        {"choices": [None, choice()]},
        {"choices": [choice(message=None, text=PROGRAM)]},
        {"choices": [choice(finish_reason=["stop"])]},
        {"choices": [choice(finish_reason=5)]},
        {"choices": [choice(finish_reason=None)]},
        {"choices": [choice(index="first")]},
        {"choices": [choice(logprobs="x")]},
        {"choices": [choice(logprobs={"content": [{"token": "x"}]})]},
        {"choices": [message(role="bot")]},
        {"choices": [message(tool_calls="x")]},
        {"choices": [message(reasoning_content=["hm"])]},
        {"choices": [message(provider_specific_fields="x", annotations="x", audio="x", images=1)]},
        {"model": ["gpt"], "id": None, "created": "yesterday", "service_tier": 5},
    ],
    ids=str,
)
def test_answer_is_kept_with_any_other_fields(fields):
    completion = ask(sends(**fields))
    assert (completion.text, completion.lacking) == (PROGRAM, "")
    assert completion.usage.cost == pytest.approx(COST)


def test_lone_surrogate_is_replaced():
    assert ask(sends(choices=[choice("a \ud800 b")])).text == "a ? b"


@pytest.mark.parametrize(
    ("choices", "lacking"),
    [
        (None, "the provider sent no completion"),
        ([choice(7)], "the answer was empty"),
        ([message(content=None, reasoning=["hm"])], "the model returned reasoning, but no answer"),
        ([message(content=None, refusal=["No."])], "the model refuses to answer (No.)"),
        ([choice([{"type": "refusal", "refusal": "No."}])], "the model refuses to answer (No.)"),
    ],
    ids=str,
)
def test_answer_without_text_is_requested_again(choices, lacking):
    with OpenAIServer([sends(choices=choices), sends()]) as server:
        asked = Request(MESSAGES, 7, Move(GENERATE), problem=None)
        assert LiteLLM(PRICED, api_base=server.url, retries=0).complete(asked).text == PROGRAM
    with OpenAIServer([sends(choices=choices)]) as server:
        completion = LiteLLM(PRICED, api_base=server.url, retries=0).complete(asked)
        assert len(server.requests) == 3
    assert (completion.text, completion.lacking) == ("", lacking)
    assert completion.usage.cost == pytest.approx(3 * COST)


def test_cut_answer_without_counts_is_reported_as_cut():
    cut = sends(choices=[choice(finish_reason="LENGTH")], usage=None)
    completion = ask(cut, max_tokens=10)
    assert (completion.text, completion.lacking) == (PROGRAM, "the answer was cut off")


def streams(*events: dict[str, object]) -> Behaviour:
    """Answer with server-sent events, with the line ends that the standard prefers."""

    def behave(handler: Handler) -> None:
        handler.begin("text/event-stream")
        for event in events:
            sent = json.loads(body(handler)) | {"object": "chat.completion.chunk", **event}
            handler.wfile.write(b"data: " + json.dumps(sent).encode() + b"\r\n\r\n")
        handler.wfile.write(b"data: [DONE]\r\n\r\n")

    return behave


def piece(content: object, finish: object = None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": {"role": None, "content": content}, "finish_reason": finish}]


def test_streamed_answer_of_unusual_form_is_kept():
    completion = ask(
        streams(
            {"choices": piece([{"type": "thinking", "thinking": "wrong"}]), "usage": None},
            {"choices": piece([{"type": "text", "text": "the "}]), "usage": []},
            {"choices": piece(["program"], ["stop"]), "usage": "none"},
            {"choices": piece(None, "stop"), "usage": None},
            {"choices": [], "usage": {name: str(count) for name, count in COUNTS.items()}},
        ),
        stream=True,
    )
    assert (completion.text, completion.lacking) == (PROGRAM, "")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (100, 10)


@pytest.mark.parametrize("sent", [b"[]", b'"x"', b"5", b"{}", b'{"choices": '], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_body_is_one_line_and_counts_as_charged(sent, stream):
    asked = Request(MESSAGES, 7, Move(GENERATE), problem=None, allowance=1.0)
    with OpenAIServer([lambda handler: handler.reply(200, sent)]) as server:
        with pytest.raises(UnansweredError) as caught:
            options = {"retries": 1, "backoff": 0.01, "stream": stream}
            LiteLLM(PRICED, api_base=server.url, **options).complete(asked)
        assert len(server.requests) == 2
    told = str(caught.value)
    assert told.startswith("openai still fails after 2 attempts (")
    assert not re.search(r"\n|litellm|Traceback|site-packages", told)
    assert caught.value.cost > 0


def test_echoed_log_probabilities_of_odd_types_are_rejected():
    told = {"tokens": ["a"], "token_logprobs": ["x"], "text_offset": [0]}
    odd = {"index": 0, "text": "a", "finish_reason": "length", "logprobs": told}

    def behave(handler: Handler) -> None:
        sent = json.loads(body(handler, object="text_completion", choices=[odd], usage="none"))
        handler.reply(200, json.dumps(sent).encode())

    with OpenAIServer([behave]) as server:
        backend = LiteLLM("hosted_vllm/x", api_base=server.url, retries=0)
        assert not backend.can_score
        with pytest.raises(CwmError, match="returns no log-probabilities of prompts"):
            backend.score([ScoreRequest(MESSAGES, "a")])


def test_usual_answers_are_unchanged():
    likely = [("right", -0.5), (" = 1", -0.25)]
    asked = Request(MESSAGES, 7, Move(GENERATE), problem=None, weighed=True)
    with OpenAIServer([answer("right = 1", tokens=likely)]) as server:
        completion = LiteLLM("hosted_vllm/x", api_base=server.url).complete(asked)
    assert (completion.text, completion.log_probability) == ("right = 1", -0.75)
