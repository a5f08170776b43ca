"""Engines with special behaviour, and models that refuse usual parameters."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from cwm_cli.search.contracts import Message, Usage
from cwm_cli.search.reading import extract_program, without_thinking
from cwm_litellm.transport import begin_attempt
from engines import (
    SYSTEM,
    USER,
    Ollama,
    backend,
    llama_cpp,
    lm_studio,
    particular,
    request,
    said,
    vllm,
)
from folders import SUPPORT
from openai_server import OpenAIServer, answer, error, hang, rate_limited, reset, truncated_json

BEGUN = Message(role="assistant", content="```python\nimport math")
LONG = (SYSTEM, Message(role="user", content="u" * 60_000 + " THE END"))


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-very-secret-key")


@pytest.fixture(autouse=True)
def silence(capfd):
    """Check that nothing is printed over the live view."""
    yield
    assert capfd.readouterr() == ("", "")


def shorter(room):
    """Leave out the middle."""
    return SYSTEM, Message(role="user", content="u" * max(1000, room - 100) + " THE END")


def test_ollama_context_fits_prompt_and_answer():
    for model in ("ollama/llama3", "ollama_chat/llama3"):
        with Ollama() as server:
            asking = backend(server, model, top_k=40)
            first = asking.complete(request())
            asking.complete(request(*LONG))
            asking.complete(request())
            chats = server.chats
        assert (first.text, first.lacking, first.usage.cost) == ("print('hello')", "", 0.0), model
        assert server.shown == ["llama3"], "asked once"
        assert [each["options"]["num_ctx"] for each in chats] == [16_384, 32_768, 32_768]
        assert (
            chats[0]["options"] | {"seed": 7, "top_k": 40, "temperature": 1.0}
            == (chats[0]["options"])
        )
        assert [each["role"] for each in chats[0]["messages"]] == ["system", "user"]


def test_prompt_that_ollama_would_cut_is_shortened_or_fits():
    def heard(prompt):
        return "whole" if "You write programs." in prompt and "THE END" in prompt else "cut"

    begin_attempt(time.monotonic() - 1.0)  # of an earlier request in this thread
    with Ollama(heard, context_length=8192) as server:
        done = backend(server, "ollama/small").complete(request(*LONG, shorter=shorter))
    assert (done.text, done.lacking) == ("whole", "")
    assert done.note.startswith("the prompt is too long for ollama/small: shortened from 60,")
    with Ollama("x" * 80_000) as server:  # 20,000 tokens; the context length is unknown
        done = backend(server, "ollama/llama3").complete(request())
        held = [each["options"]["num_ctx"] for each in server.chats]
    assert (len(done.text), done.lacking, held) == (80_000, "", [16_384, 32_768])
    with Ollama("x" * 80_000) as server:
        done = backend(server, "ollama/llama3", context=2048).complete(request())
        held = {each["options"]["num_ctx"] for each in server.chats}
        assert server.shown == []
    assert (held, done.lacking) == (
        {2048},
        "the context of 2,048 tokens was full, so the server dropped the prompt",
    )
    with Ollama(parameters='stop "<|eot|>"\nnum_ctx 65536') as server:
        backend(server, "ollama/wide").complete(request())
        assert server.chats[-1]["options"]["num_ctx"] == 65_536, "as its author wants"


def test_reasoning_of_ollama_is_not_an_answer():
    with Ollama("right = 1", thinking="wrong = 1") as server:
        done = backend(server, "ollama/qwen3", reasoning_effort="high").complete(request())
        assert server.chats[-1]["think"] is True
    assert (done.text, done.note) == ("right = 1", "")
    with Ollama("right = 1", can_think=False) as server:
        done = backend(server, "ollama/llama3", reasoning_effort="high").complete(request())
        assert "think" not in server.chats[-1]
    assert done.text == "right = 1"
    assert done.note == "ollama/llama3 does not accept reasoning_effort: left to the model"
    with Ollama("<think>\nwrong = 1\n</think>\n\nright = 1") as server:
        assert backend(server, "ollama/r1").complete(request()).text == "right = 1"
    with Ollama("right = 1") as server:
        done = backend(server, "ollama/llama3", max_tokens=1).complete(request())
    assert (done.text, done.lacking) == ("righ", "the answer was cut off after 1 tokens")


@pytest.mark.parametrize("newest", [False, True], ids=["older", "newest"])
def test_vllm_requests_fit_its_context_and_its_reasoning_is_not_code(newest):
    with OpenAIServer(vllm(newest=newest)) as server:
        asking = backend(server, "hosted_vllm/llama")
        done = asking.complete(request(*LONG, shorter=shorter))
        assert server.requests[0].body["seed"] == 7
    assert extract_program(done.text) == "right = 1\n"
    assert "shortened from 60," in done.note


def test_model_without_system_messages_gets_them_in_user_message():
    raised = (
        "\n------------\nWhile executing CallExpression at line 1, column 67 in source:\n"
        "...messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported')...\n"
        "Error: Jinja Exception: System role not supported"
    )
    refusals = {
        "vllm": ("hosted_vllm/gemma", vllm(system=False)),
        "llama.cpp": ("llamafile/gemma", llama_cpp(template=raised)),
        "gemini": ("openai/a", particular(system="Developer instruction is not enabled for x")),
        "mistral": ("openai/a", particular(system="Only user and assistant roles are supported!")),
        "alternating": (
            "openai/a",
            particular(system="Conversation roles must alternate user/assistant/user/..."),
        ),
        "o1-mini": (
            "openai/a",
            particular(
                system="Unsupported value: 'messages[0].role' does not support 'system' with this "
                "model."
            ),
        ),
    }
    for name, (model, script) in refusals.items():
        lines = []
        with OpenAIServer(script) as server:
            asking = backend(server, model)
            first = asking.complete(request(log=lines.append))
            asking.complete(request())
            bodies = [each.body["messages"] for each in server.requests]
        assert (first.lacking, first.note) == ("", ""), name
        counts = [len(each) for each in bodies]
        assert counts[-3:] == [2, 1, 1], f"{name}: remembered"
        assert len(counts) == (4 if name == "alternating" else 3), "LiteLLM tries that itself"
        assert bodies[-1] == [{"role": "user", "content": "You write programs.\n\nWrite one."}], (
            name
        )
        assert "later requests are adapted" in lines[0], name


def test_refused_parameters_are_left_out_with_one_note():
    """With the messages of OpenAI, Anthropic, and servers that validate."""
    words = {
        "temperature": "Unsupported value: 'temperature' does not support 0.5 with this model. "
        "Only the default (1) value is supported.",
        "top_p": "`temperature` and `top_p` cannot both be specified for this model.",
        "seed": "Unrecognized request argument supplied: seed",
        "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead.",
    }
    options = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 1500}
    with OpenAIServer(particular(**words)) as server:
        asking = backend(server, "openai/some-deployment", **options)
        first, second = asking.complete(request()), asking.complete(request())
        count = len(server.requests)
    assert count == 6
    left = {"messages", "model", "max_completion_tokens"}
    assert json.loads(second.text).keys() == json.loads(first.text).keys() == left
    assert json.loads(second.text)["max_completion_tokens"] == 1500
    assert first.note == (
        "openai/some-deployment does not accept temperature: left to the model; "
        "openai/some-deployment does not accept top_p: left to the model"
    )
    assert second.note == ""
    with OpenAIServer([answer("x")]) as server:  # what LiteLLM itself knows
        asking = backend(server, "openai/gpt-5", temperature=0.5)
        notes = [asking.complete(request()).note for _ in range(2)]
    assert notes == ["openai/gpt-5 does not accept temperature: left to the model", ""]


def test_model_without_prefill_gets_first_lines_in_prompt():
    for words in (
        "This model does not support assistant message prefill. The conversation must end with a "
        "user message.",
        "Expected last role User or Tool (or Assistant with prefix True) but got assistant",
        "Assistant response prefill is incompatible with enable_thinking.",
    ):
        with OpenAIServer(particular(assistant=words)) as server:
            done = backend(server, "openai/a").complete(request(SYSTEM, USER, BEGUN))
            last = server.requests[-1].body["messages"][-1]
        assert last["role"] == "user"
        assert last["content"].startswith("Write one.\n\nBegin your answer with exactly")
        assert last["content"].endswith(BEGUN.content)
        assert "does not continue a prefilled answer" in done.note


def test_llama_cpp_and_lm_studio_are_supported():
    for model, script in (("llamafile/any", llama_cpp()), ("lm_studio/any", lm_studio())):
        with OpenAIServer(script) as server:
            done = backend(server, model).complete(request(*LONG, shorter=shorter))
            assert len(server.requests) == 2, (
                "the numbers of one answer determine the length that fits"
            )
        assert (done.text, done.lacking) == ("right = 1", "")
        assert "shortened" in done.note


def test_reasoning_is_not_an_answer_and_its_tokens_count():
    thinks = {"reasoning_content": "```python\nwrong = 1\n```"}
    cut = answer(None, 100, 16_000, "length", **thinks)
    with OpenAIServer([cut, answer("```python\nright = 1\n```", **thinks)]) as server:
        done = backend(server, "openai/o3-mini").complete(request())
        assert server.requests[1].body["max_completion_tokens"] == 100_000
    assert (extract_program(done.text), done.usage.completion_tokens) == ("right = 1\n", 16_010)
    lacking = {
        "the answer was cut off after 50 tokens of thinking": [
            answer("<think>\nwrong = 1", 100, 50, "length"),
            answer(None, 100, 50, "length", reasoning="wrong"),
        ],
        "the model returned reasoning, but no answer": [
            answer("<think>\nwrong = 1"),
            answer("<think>wrong = 1</think>\n"),
            answer("", **thinks),
        ],
    }
    for words, behaviours in lacking.items():
        for behaviour in behaviours:
            with OpenAIServer([behaviour]) as server:
                done = backend(server, "openai/x", max_tokens=50).complete(request())
            assert (done.text, done.lacking) == ("", words)
    told = {
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    with OpenAIServer([answer("x", 100, 400, usage=told)]) as server:
        usage = backend(server, "openai/gpt-4o-mini").complete(request()).usage
    cost = 20 * 0.15e-6 + 80 * 0.075e-6 + 400 * 0.60e-6
    assert replace(usage, seconds=0.0, cost=None) == Usage(
        100, 400, None, cached_tokens=80, reasoning_tokens=300
    )
    assert usage.cost == pytest.approx(cost)


@pytest.mark.parametrize(
    ("text", "said", "done"),
    [
        ("<think>\n```python\nwrong = 1\n```\n</think>\n\nright = 1", "right = 1", True),
        ("wrong = 1\n</think>\n\nright = 1", "right = 1", True),
        ("[THINK]wrong[/THINK]right = 1", "right = 1", True),
        ("Well.\n<think>wrong</think>\nright = 1", "Well.\nright = 1", True),
        ("<think>a</think>\n<think>b</think>\nright = 1", "right = 1", True),
        ("<think>wrong = 1", "", False),
        ("<think>a</think>\n<thinking>b", "", False),
        ("text = '''\n<think>\n'''", "text = '''\n<think>\n'''", True),
        ("print('</think>')", "print('</think>')", True),
    ],
)
def test_written_reasoning_is_left_out(text, said, done):
    assert without_thinking(text) == (said, done)


@pytest.mark.slow
def test_log_explains_each_retry():
    lines: list[str] = []
    script = [
        hang,
        rate_limited("0.02"),
        error(503, "Loading model"),
        reset,
        truncated_json,
        error(400, "Unsupported value: 'temperature' does not support 0.5 with this model."),
        answer("half", 100, 500, "length"),
        answer(None),
        answer("whole", 1200, 34, usage={"prompt_tokens_details": {"cached_tokens": 1000}}),
    ]
    with OpenAIServer(script) as server:
        asking = backend(server, "openai/gpt-4o-mini", temperature=0.5, timeout=1.0)
        done = asking.complete(request(log=lines.append))
    assert done.text == "whole"
    expected = [
        r"timed out, at attempt 1: retry in \d\.\d s",
        r"limits the rate, at attempt 2: retry in 0\.0 s, as the server requests",
        r"failed \(503: .*Loading model.*\), at attempt 3: retry in \d\.\d s",
        r"failed \(.*reset by peer.*\), at attempt 4: retry in \d\.\d s",
        r"failed \((\d+: )?its answer is not JSON\), at attempt 5: retry in \d\.\d s",
        r"refused the request \(.*temperature.*\): later requests are adapted",
        r"answered chatcmpl-1 in \d\.\d s, at attempt 6: 100 tokens of prompt, 500 of answer, "
        r"\$0\.000315, finished by length",
        r"is asked again for up to 16,384 tokens",
        r"answered chatcmpl-1 in .* finished by stop",
        r"is asked again: the answer was empty",
        r"answered chatcmpl-1 in .*: 1,200 tokens of prompt \(1,000 cached\), 34 of answer"
        r", \$0\.000125, finished by stop",
    ]
    assert len(lines) == len(expected), "\n".join(lines)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(rf"step 3: openai/gpt-4o-mini {pattern}", line), line
    assert not any(words in "".join(lines) for words in ("secret", "Write one", "You write"))


def anthropic(body):
    """Answer like the API of Anthropic, which counts cached tokens separately."""
    return said(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [
                {"type": "thinking", "thinking": "wrong = 1", "signature": "x"},
                {"type": "text", "text": "right = 1"},
            ],
            "stop_reason": "end_turn",
            "usage": {
                "input_tokens": 200,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 1800,
                "output_tokens": 50,
            },
        }
    )


def test_cache_mark_ends_stable_part_of_prompt_for_providers_that_need_it(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-very-secret-key")
    stable = "What it is about. "
    asked = request(SYSTEM, Message(role="user", content=f"{stable}What now?", stable=len(stable)))
    with OpenAIServer(anthropic) as server:
        root = server.url.removesuffix("/v1")
        done = backend(server, "anthropic/claude-sonnet-4-5", api_base=root).complete(asked)
        body = server.requests[-1].body
    first, second = body["messages"][0]["content"]
    assert (first["text"], second["text"]) == (stable, "What now?")
    assert first["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" not in second
    assert done.text == "right = 1"
    assert (done.usage.prompt_tokens, done.usage.cached_tokens) == (2000, 1800)
    assert done.usage.cost == pytest.approx(200 * 3e-6 + 1800 * 0.3e-6 + 50 * 15e-6)
    for name in ("openai/gpt-4o-mini", "hosted_vllm/llama"):
        with OpenAIServer([answer("x")]) as server:
            backend(server, name).complete(asked)
            assert server.requests[0].body["messages"][1]["content"] == f"{stable}What now?"
    assert asked.messages[1].model_dump() == {"role": "user", "content": f"{stable}What now?"}


TRACED = """
import os, sys
os.environ["OPENAI_API_KEY"] = "a-very-secret-key"
from engines import backend, request
from openai_server import OpenAIServer, answer, error
with OpenAIServer([error(500), answer("the answer itself")]) as server:
    asking = backend(server, "openai/gpt-4o-mini", spans=sys.argv[1])
    print(asking.complete(request()).text)
"""


@pytest.mark.long
def test_each_request_sends_a_span_without_prompt_and_answer():
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    found = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            found.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        Thread(target=collector.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{collector.server_address[1]}"
        done = subprocess.run(
            [sys.executable, "-c", TRACED, address],
            capture_output=True,
            text=True,
            cwd=SUPPORT,
            timeout=120,
        )
        collector.shutdown()
    assert (done.stdout, done.stderr) == ("the answer itself\n", "")
    sent = b"".join(body for path, body in found if path == "/v1/traces")
    for words in (b"litellm_request", b"gpt-4o-mini", b"chatcmpl-1", b"it broke"):
        assert words in sent
    for words in (b"the answer itself", b"You write", b"secret"):
        assert words not in sent
