"""Language models through LiteLLM, against a server on the loopback."""

import gzip
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from itertools import pairwise

import httpx
import pytest

from cwm_cli.errors import CwmError, install_command
from cwm_cli.search.contracts import GENERATE, Message, Move, Request, UnansweredError
from cwm_litellm import models, spans
from cwm_litellm.backend import LiteLLM
from cwm_litellm.library import load
from folders import SUPPORT
from openai_server import (
    CONTEXT_WORDS,
    FILTERED,
    OUT_OF_QUOTA,
    TOO_LONG,
    UNKNOWN_MODEL,
    WRONG_KEY,
    OpenAIServer,
    answer,
    cut_off,
    drip,
    error,
    hang,
    holds,
    huge,
    no_choices,
    rate_limited,
    reset,
    truncated_json,
    whole,
)

PRICED = "openai/gpt-4o-mini"  # $0.15 and $0.60 per million tokens
UNPRICED = "openai/some-local-model"
KEY = "a-very-secret-key"
DATE = "Fri, 20 Nov 2020 12:00:00 GMT"
MESSAGES = (
    Message(role="system", content="You write programs."),
    Message(role="user", content="Write one."),
)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(autouse=True)
def silence(capfd):
    """Check that nothing is printed over the live view."""
    yield
    assert capfd.readouterr() == ("", "")


def request(seed=7):
    return Request(MESSAGES, seed, Move(GENERATE), problem=None)


def ask(server, model=PRICED, **options):
    quick = {"api_base": server.url, "timeout": 20, "retries": 2, "backoff": 0.01}
    return LiteLLM(model, **quick | options).complete(request())


def failure(server, model=PRICED, **options):
    """Send a request that fails; return the message, which is one line without the key."""
    with pytest.raises(CwmError) as caught:
        ask(server, model, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    assert "sk-" not in message
    assert "litellm" not in message.lower()
    return message


def pauses(server):
    """Return the seconds between one request and the next."""
    times = [received.seconds for received in server.requests]
    return [after - before for before, after in pairwise(times)]


def test_answer_has_tokens_cost_and_time():
    with OpenAIServer([answer("a program", prompt_tokens=1000, completion_tokens=500)]) as server:
        completion = ask(server)
    assert completion.text == "a program"
    assert completion.usage.prompt_tokens == 1000
    assert completion.usage.completion_tokens == 500
    assert completion.usage.cost == pytest.approx(1000 * 0.15e-6 + 500 * 0.60e-6)
    assert 0 < completion.usage.seconds < 10


@pytest.mark.parametrize(
    ("model", "behaviour"),
    [(UNPRICED, answer("x")), (PRICED, answer("x", prompt_tokens=0, completion_tokens=0))],
    ids=["price not known", "tokens not counted"],
)
def test_unknown_cost_is_none(model, behaviour):
    with OpenAIServer([behaviour]) as server:
        assert ask(server, model).usage.cost is None


@pytest.mark.parametrize(
    ("behaviour", "lacking"),
    [
        (answer(None), "the answer was empty"),
        (answer(" "), "the answer was empty"),
        (no_choices, "the provider sent no completion"),
        (answer(None, refusal="I will\nnot."), "the model refuses to answer (I will not.)"),
        (
            answer(None, finish="content_filter"),
            "the provider's content filter withheld the completion",
        ),
    ],
)
def test_missing_answer_is_requested_again_and_then_reported(behaviour, lacking):
    with OpenAIServer([behaviour, answer("at last")]) as server:
        completion = ask(server)
        assert (completion.text, completion.lacking) == ("at last", "")
        assert completion.usage.prompt_tokens == 200
    with OpenAIServer([behaviour]) as server:
        completion = ask(server)
        assert [received.body["seed"] for received in server.requests] == [7, 8, 9]
    assert (completion.text.strip(), completion.lacking) == ("", lacking)
    assert completion.usage.prompt_tokens == 300
    assert completion.usage.cost >= 300 * 0.15e-6


def test_filtered_prompt_does_not_end_a_run():
    with OpenAIServer([FILTERED]) as server:
        completion = ask(server)
        assert len(server.requests) == 3
    assert completion.text == ""
    assert completion.lacking.startswith("the content filter of openai refused the prompt (The")
    with OpenAIServer([FILTERED, answer("x")]) as server:
        assert ask(server).text == "x"


def test_answer_is_cut_only_at_the_limit_of_the_user():
    with OpenAIServer([answer("x"), answer("half", finish="length")]) as server:
        ask(server)
        assert not {"max_tokens", "max_completion_tokens"} & server.requests[0].body.keys()
        completion = ask(server, max_tokens=1500)
        assert [received.body.get("max_tokens") for received in server.requests] == [None, 1500]
    assert completion.text == "half"
    assert completion.lacking == "the answer was cut off after 10 tokens"


@pytest.mark.parametrize(
    ("model", "used", "tokens"),
    [(PRICED, 500, [None, 16384]), (UNPRICED, 500, [None, 2000, 8000]), (PRICED, 16384, [None])],
    ids=["maximum output", "four times the tokens", "no more than before"],
)
def test_cut_answer_is_requested_again_with_more_tokens(model, used, tokens):
    whole = len(tokens)

    def respond(body):
        limit = body.get("max_tokens") or used
        return answer(f"up to {limit}", completion_tokens=limit, finish="length")

    with OpenAIServer(respond) as server:
        completion = ask(server, model)
        assert [received.body.get("max_tokens") for received in server.requests][:whole] == tokens
    last = tokens[-1] or used
    assert completion.text == f"up to {last}"
    assert completion.lacking == f"the answer was cut off after {last:,} tokens"
    assert completion.usage.completion_tokens == sum(used if t is None else t for t in tokens)
    script = [answer("half", completion_tokens=500, finish="length"), answer("whole")]
    if whole > 1:
        with OpenAIServer(script) as server:
            assert ask(server, model)[:1] == ("whole",)


@pytest.mark.slow
def test_all_attempts_together_stay_within_the_allowance():
    def respond(body):
        return answer("x", prompt_tokens=10, completion_tokens=body["max_tokens"], finish="length")

    def nothing(body):
        return answer(None, prompt_tokens=10, completion_tokens=min(1000, body["max_tokens"]))

    for allowance in (0.001, 0.02):
        for script in (respond, nothing, [hang]):
            with OpenAIServer(script) as server:
                backend = LiteLLM(PRICED, api_base=server.url, timeout=0.3, backoff=0.01)
                asked, completion = request()._replace(allowance=allowance), None
                with suppress(CwmError):  # that there was no answer in time
                    completion = backend.complete(asked)
                limits = [received.body["max_tokens"] for received in server.requests]
            assert sum(limits) * 0.60e-6 <= allowance or script is nothing
            assert completion is None or completion.usage.cost <= allowance
            assert completion is None or completion.lacking
    with OpenAIServer(respond) as server:
        backend = LiteLLM(PRICED, api_base=server.url)
        assert "--max-cost" in backend.complete(request()._replace(allowance=1e-5)).lacking
        assert server.requests == []


def test_messages_seed_and_sampling_settings_reach_the_server():
    settings = {"temperature": 0.5, "top_p": 0.8, "top_k": 100, "max_tokens": 1500}
    with OpenAIServer([answer("x")]) as server:
        ask(server, "hosted_vllm/llama", **settings)
        (received,) = server.requests
    assert received.body["messages"] == [message.model_dump() for message in MESSAGES]
    assert received.body["seed"] == 7
    assert settings.items() <= received.body.items()


def test_reasoning_model_does_not_get_parameters_that_it_refuses():
    with OpenAIServer([answer("x")]) as server:
        ask(server, "openai/o3-mini", temperature=0.5, top_p=0.8)
        (received,) = server.requests
    assert not {"temperature", "top_p", "max_tokens"} & received.body.keys()
    with OpenAIServer([answer("x")]) as server:
        ask(server, "openai/o3-mini", max_tokens=5000)
        assert server.requests[0].body["max_completion_tokens"] == 5000


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(rate_limited(), id="rate limit"),
        pytest.param(rate_limited("0.01"), id="rate limit with a number"),
        pytest.param(rate_limited(DATE), id="rate limit with a date"),
        pytest.param(rate_limited("soon"), id="rate limit with neither"),
        pytest.param(error(500), id="500"),
        pytest.param(error(503), id="503"),
        pytest.param(error(529), id="529"),
        pytest.param(truncated_json, id="truncated JSON"),
        pytest.param(cut_off, id="truncated body"),
        pytest.param(reset, id="connection reset"),
    ],
)
def test_temporary_failure_is_retried(behaviour):
    with OpenAIServer([behaviour, behaviour, answer("at last")]) as server:
        assert ask(server).text == "at last"
        assert len(server.requests) == 3


def test_hung_connection_is_cut_and_retried():
    with OpenAIServer([hang, answer("at last")]) as server:
        assert ask(server, timeout=0.5).text == "at last"
        assert len(server.requests) == 2


@pytest.mark.parametrize("header", [False, True], ids=["of the body", "of the header"])
def test_timeout_includes_slow_answers(header):
    with OpenAIServer([drip(0.05, header=header), answer("at last")]) as server:
        assert ask(server, timeout=0.4).text == "at last"
        assert len(server.requests) == 2


LONGER = "the answer is longer than 1 MB and was rejected"


@pytest.mark.parametrize("model", [PRICED, "hosted_vllm/llama", "deepseek/deepseek-chat"])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_endless_answer_is_rejected(model, kind, monkeypatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    taken = []
    with OpenAIServer([huge(200, taken, kind)]) as server:
        completion = ask(server, model)
        assert len(server.requests) == 3
    assert completion.text == ""
    assert completion.lacking == LONGER
    assert len(taken) < 3 * 32


def test_long_answer_is_cut_to_the_maximum_text():
    with OpenAIServer([answer("x" * (2 << 20))]) as server:
        completion = ask(server)
    assert (len(completion.text), completion.lacking) == (1 << 20, LONGER)


def test_compressed_answer_is_rejected():
    packed = gzip.compress(b"x" * (64 << 20))
    with OpenAIServer([lambda h: h.reply(200, packed, {"Content-Encoding": "gzip"})]) as server:
        assert "its answer is compressed" in failure(server)
        assert server.requests[0].headers["Accept-Encoding"] == "identity"


def test_streamed_answer_is_the_same():
    text = "one\ntwo\nthree"
    with OpenAIServer([answer(text, 1000, 500)]) as server:
        streamed, whole_one = ask(server, stream=True), ask(server)
        assert server.requests[0].body["stream"]
    assert streamed.text == whole_one.text == text
    assert streamed.usage.tokens == whole_one.usage.tokens == 1500
    assert streamed.usage.cost == whole_one.usage.cost
    with OpenAIServer([answer("half", finish="length"), answer("whole")]) as server:
        assert ask(server, stream=True).text == "whole"
        assert server.requests[1].body["max_tokens"] == 16384


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_whole_answer_is_kept_although_a_stream_was_requested(content_type):
    with OpenAIServer([whole("whole", content_type)]) as server:
        completion = ask(server, stream=True)
        assert [received.body["stream"] for received in server.requests] == [True]
    assert (completion.text, completion.usage.tokens) == ("whole", 110)


LONG = (Message(role="system", content="s" * 100), Message(role="user", content="u" * 39_900))


def shorter(room):
    """Remove the end, but no part of the program."""
    return LONG[0], Message(role="user", content="u" * max(1000, room - 100))


@pytest.mark.parametrize("words", CONTEXT_WORDS)
def test_too_long_prompt_is_shortened_and_its_limit_is_remembered(words):
    context = 3000  # tokens, and so 12,000 characters
    with OpenAIServer(holds(context, words)("fits")) as server:
        backend = LiteLLM("hosted_vllm/llama", api_base=server.url)
        asked = request()._replace(messages=LONG, shorter=shorter)
        first, refused = backend.complete(asked), len(server.requests) - 1
        second = backend.complete(asked)
        assert len(server.requests) == refused + 2
        assert len(server.requests[-1].prompt) > 12_000 / 3
    assert (first.text, second.text) == ("fits", "fits")
    assert refused <= (4 if words == "other" else 2)
    assert re.fullmatch(
        r"the prompt is too long for hosted_vllm/llama: shortened from 40,000 to [\d,]+ characters,"
        r" examples first",
        first.note,
    )
    assert second.note == ""


@pytest.mark.parametrize("words", ["vllm", "newer vllm", "other"])
def test_too_long_answer_is_requested_with_fewer_tokens(words):
    with OpenAIServer(holds(4000, words)("fits")) as server:
        completion = ask(server, "hosted_vllm/llama", max_tokens=8000)
        assert len(server.requests[-1].prompt) == len(server.requests[0].prompt)
    assert completion.text == "fits"
    assert completion.note == ""


def test_prompt_that_cannot_be_short_enough_ends_the_run():
    with OpenAIServer(holds(200)("x")) as server, pytest.raises(CwmError, match="even when it is"):
        LiteLLM(PRICED, api_base=server.url).complete(
            request()._replace(messages=LONG, shorter=shorter)
        )


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (rate_limited(), "openai: rate limit still exceeded after 3 attempts: lower --parallel"),
        (error(500), "openai still fails after 3 attempts (it broke): try again later"),
        (truncated_json, "openai still fails after 3 attempts (its answer is not JSON)"),
        (reset, "openai still fails after 3 attempts ([Errno 104] Connection reset by peer)"),
    ],
)
def test_retries_end(behaviour, message):
    with OpenAIServer([behaviour]) as server:
        assert failure(server).startswith(message)
        assert len(server.requests) == 3


def test_unresponsive_server_is_given_up():
    with OpenAIServer([hang]) as server:
        message = failure(server, timeout=0.2, retries=1)
        assert len(server.requests) == 2
    assert message.startswith(f"{PRICED} timed out 2 times: raise -o timeout=SECONDS")


@pytest.mark.parametrize(
    ("behaviour", "may_be_charged"),
    [
        (error(500), False),
        (rate_limited(), False),
        (reset, True),
        (cut_off, True),
        (truncated_json, True),
    ],
)
def test_cost_of_unanswered_request_counts_if_it_may_be_charged(behaviour, may_be_charged):
    with OpenAIServer([behaviour]) as server, pytest.raises(UnansweredError) as raised:
        LiteLLM(PRICED, api_base=server.url, retries=1, backoff=0.01, max_tokens=1000).complete(
            request()._replace(allowance=1.0)
        )
    assert len(server.requests) == 2
    cost = raised.value.cost or 0.0
    assert (2 * 1000 * 0.60e-6 < cost < 0.002) if may_be_charged else cost == 0


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (WRONG_KEY, "openai refused the key: check OPENAI_API_KEY"),
        (OUT_OF_QUOTA, "the quota of openai is exhausted: add credit or choose another model"),
        (error(402), "the quota of openai is exhausted: add credit or choose another model"),
        (UNKNOWN_MODEL, "openai has no model 'gpt-4o-mini': check --model"),
        (TOO_LONG, f"the prompt is too long for {PRICED}, even when it is shortened: choose"),
        (error(400, "top_k is\nunknown"), "openai refused the request (top_k is unknown): change"),
        (error(403, f"{KEY} or sk-x may not"), "openai refused the request (*** or *** may not)"),
    ],
)
def test_errors_that_the_user_must_fix_are_not_retried(behaviour, message):
    with OpenAIServer([behaviour]) as server:
        assert failure(server).startswith(message)
        assert len(server.requests) == 1


def test_pauses_grow_with_attempts():
    with OpenAIServer([error(500)] * 3 + [answer("x")]) as server:
        ask(server, retries=3, backoff=0.05)
        first, second, third = pauses(server)
    assert first >= 0.05
    assert second >= 0.10
    assert third >= 0.20


def test_pause_follows_seconds_of_the_server():
    with OpenAIServer([rate_limited("0.3"), answer("x")]) as server:
        ask(server)
        assert pauses(server)[0] >= 0.3


@pytest.mark.slow
def test_pause_follows_date_of_the_server():
    in_two_seconds = formatdate(time.time() + 2, usegmt=True)
    with OpenAIServer([error(503, Retry_After=in_two_seconds), answer("x")]) as server:
        ask(server)
        assert pauses(server)[0] >= 0.9


def test_pause_of_the_server_is_limited():
    with OpenAIServer([rate_limited("3600"), answer("x")]) as server:
        ask(server, longest_wait=0.2)
        assert 0.2 <= pauses(server)[0] < 30


def test_unreachable_server_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    backend = LiteLLM(PRICED, api_base=f"{address}/v1?key=secret", backoff=0.01)
    with pytest.raises(CwmError) as caught:
        backend.complete(request())
    assert str(caught.value) == (
        f"no connection to {address} ([Errno 111] Connection refused):"
        " check the network and --api-base"
    )


def test_address_without_scheme_is_rejected():
    with pytest.raises(CwmError, match="missing an 'http://' or 'https://' protocol"):
        LiteLLM(PRICED, api_base="localhost:8000", backoff=0.01).complete(request())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gibberish", "unknown model 'gibberish': write PROVIDER/NAME, such as openai/"),
        ("opnai/gpt-4o", "unknown model 'opnai/gpt-4o': did you mean openai/gpt-4o?"),
    ],
)
def test_model_of_unknown_provider_is_rejected_before_any_request(model, message):
    with OpenAIServer([answer("x")]) as server:
        assert failure(server, model).startswith(message)
        assert not server.requests


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.0-flash", "GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("mistral/mistral-small", "MISTRAL_API_KEY"),
    ],
)
def test_missing_key_is_named(model, names, monkeypatch):
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    with OpenAIServer([WRONG_KEY]) as server:
        assert failure(server, model).endswith(f": set {names}")


def test_four_threads_can_send_requests_concurrently():
    together = threading.Barrier(4, timeout=10)

    def meet(body):
        together.wait()
        return f"answer {body['seed']}"

    with OpenAIServer(meet) as server, ThreadPoolExecutor(4) as pool:
        backend = LiteLLM(PRICED, api_base=server.url, retries=0, timeout=20)
        answers = pool.map(lambda seed: backend.complete(request(seed)).text, range(4))
        assert list(answers) == ["answer 0", "answer 1", "answer 2", "answer 3"]


def test_worst_cost_covers_the_longest_answer():
    backend = LiteLLM(PRICED, max_tokens=1000)
    worst = backend.worst_cost(request())
    assert 1000 * 0.60e-6 < worst < 1000 * 0.60e-6 + 50 * 0.15e-6
    long = request()._replace(messages=(Message(role="user", content="word " * 10_000),))
    assert backend.worst_cost(long) == pytest.approx(1000 * 0.60e-6 + 10_000 * 0.15e-6, rel=0.01)


@pytest.mark.parametrize("model", [UNPRICED, "gibberish"])
def test_model_of_unknown_price_has_no_worst_cost(model):
    assert LiteLLM(model).worst_cost(request()) is None


def test_pricing_a_model_fetches_no_tokenizer(monkeypatch):
    """The name of a Llama makes LiteLLM fetch its tokenizer unless that is disabled."""
    model = "together_ai/meta-llama/Llama-3-of-this-test"
    price = {"litellm_provider": "together_ai", "mode": "chat"}
    price |= {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    load().register_model({model: price})
    connections = []
    monkeypatch.setattr(socket.socket, "connect", lambda *address: connections.append(address))
    assert LiteLLM(model, max_tokens=1000).worst_cost(request()) == pytest.approx(2e-3, rel=0.05)
    assert connections == []


def test_prices_are_unknown_without_the_price_list_of_litellm(monkeypatch):
    monkeypatch.setattr(models, "PRICES", "a_file_that_a_later_version_may_not_have.json")
    models.prices.cache_clear()
    try:
        assert models.price(PRICED, 1000, 1000) is None
        models.check_price(PRICED)
        models.check_model(PRICED)
        with pytest.raises(CwmError, match="did you mean openai/gpt-4o"):
            models.check_model("opnai/gpt-4o-mini")
    finally:
        models.prices.cache_clear()


def test_note_is_shown_once_if_litellm_bypasses_the_limits(monkeypatch):
    litellm = load()
    monkeypatch.setattr(litellm, "client_session", httpx.Client())
    # LiteLLM keeps clients by address, and an earlier server may have had the same port.
    cache = type(litellm.in_memory_llm_clients_cache)()
    monkeypatch.setattr(litellm, "in_memory_llm_clients_cache", cache)
    with OpenAIServer([answer("x")]) as server:
        backend = LiteLLM(PRICED, api_base=server.url, timeout=20)
        notes = [backend.complete(request()).note for _ in range(2)]
    assert notes[0].startswith("this version of LiteLLM bypasses the limits on the size")
    assert notes[1] == ""


def test_spans_are_rejected_in_one_line_if_litellm_cannot_send_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm.integrations.opentelemetry", None)
    with pytest.raises(CwmError, match="this version of LiteLLM sends no spans: leave out"):
        spans.send(load(), "http://127.0.0.1:4318")


def python(code, *arguments):
    """Run code in a new interpreter and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=SUPPORT,
    )
    return done.stdout, done.stderr


ASKS = f"""
from cwm_cli.search.contracts import GENERATE, Message, Move, Request
from cwm_litellm.backend import LiteLLM
PRICED = {PRICED!r}
def request(seed):
    messages = (Message(role="user", content="Write one."),)
    return Request(messages, seed, Move(GENERATE), problem=None)
"""


@pytest.mark.slow
def test_four_concurrent_first_calls_print_nothing_else():
    code = f"""{ASKS}
import sys
from concurrent.futures import ThreadPoolExecutor
backend = LiteLLM(PRICED, api_base=sys.argv[1], backoff=0.01)
with ThreadPoolExecutor(4) as pool:
    print([c.text for c in pool.map(backend.complete, map(request, range(4)))])
"""
    with OpenAIServer([error(500), rate_limited(), answer("x")]) as server:
        assert python(code, server.url) == ("['x', 'x', 'x', 'x']\n", "")


def test_missing_extra_and_missing_key_are_reported_together(monkeypatch):
    code = f"""
import sys
sys.modules["litellm"] = None
{ASKS}
try:
    LiteLLM(PRICED).complete(request(7))
except Exception as error:
    print(type(error).__name__, error, sep=": ")
"""
    expected = f"CwmError: language models need an extra: {install_command('cwm-cli[llm]')}"
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    assert python(code) == (f"{expected}\n", "")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert python(code) == (f"{expected}, then export OPENAI_API_KEY=KEY\n", "")


def test_loading_the_plugin_imports_nothing_heavy():
    code = """
import sys
import cwm_litellm, cwm_replay
print(sorted({"litellm", "tenacity", "pydantic", "numpy"} & sys.modules.keys()))
"""
    assert python(code) == ("[]\n", "")
