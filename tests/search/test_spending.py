"""Cost limits and rate limits hold, even if processes are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from cwm_cli.errors import CwmError
from cwm_cli.registry import find
from cwm_cli.search.contracts import GENERATE, Message, Move, Request
from cwm_cli.search.spending import (
    SPENDING,
    CostLimit,
    RateLimit,
    Refusal,
    SpendingFile,
    SpendingRequest,
    SpendingState,
    answer_request,
    lapse,
    open_spending,
    read_spending,
)
from openai_server import OpenAIServer, answer, rate_limited


@pytest.fixture
def place(tmp_path):
    """A file with a limit of 1 dollar."""
    place = tmp_path / "spending.json"
    open_spending(place, 1.0, lambda: 0.0)
    return place


def asked(place, **request):
    """Ask the file as a job does, a line of JSON."""
    return json.loads(answer_request(place, json.dumps(request).encode()))


def test_reservations_are_spent_or_freed_and_are_lost_with_a_job(place):
    first, second = (CostLimit(SpendingFile(place), job) for job in "ab")
    kept = first.reserve(0.6)
    assert kept.amount == 0.6
    assert second.reserve(0.5) is Refusal.WAIT
    first.settle(kept, 0.1)
    kept = second.reserve(0.5)
    assert second.left == pytest.approx(0.4)
    second.settle(kept, None)  # its cost is unknown
    assert second.left == pytest.approx(0.4)
    assert first.reserve(0.5) is Refusal.NEVER
    lost = first.reserve(0.3)
    lapse(place, "a")
    assert first.reserve(0.2) is Refusal.NEVER
    first.settle(lost, 0.0)  # too late: it counts already
    state = read_spending(place)
    assert (state.spent, state.lost, state.reserved) == (pytest.approx(0.6), 0.3, {})


def test_the_limit_may_change_and_earlier_costs_count(place):
    CostLimit(SpendingFile(place), "a").reserve(0.75)
    open_spending(place, 2.0, lambda: 0.0)  # lost reservations are in no journal
    assert CostLimit(SpendingFile(place), "a").left == 1.25  # no process knows of the first
    open_spending(place, None, lambda: pytest.fail("there is no limit"))
    open_spending(place, 2.0, lambda: 0.25)  # the cost in the meantime
    assert CostLimit(SpendingFile(place), "a").left == 1.0
    open_spending(place, 2.0, lambda: 1.0)  # the file is older than the journals
    assert CostLimit(SpendingFile(place), "a").left == 0.25
    place.unlink()
    open_spending(place, 2.0, lambda: 0.5)
    assert CostLimit(SpendingFile(place), "a").left == 1.5


def test_invalid_requests_report_an_error_and_reserve_nothing(place, tmp_path):
    wrong = {}
    for line in (b"", b"[]", b'{"ask": "steal"}', b'{"ask": "charge", "amount": -1}'):
        wrong[line] = json.loads(answer_request(place, line))
    wrong["nan"] = json.loads(answer_request(place, b'{"ask": "reserve", "amount": NaN}'))
    wrong["missing"] = asked(tmp_path / "nothing.json", ask="reserve", amount=0.1)
    place.write_text("{")
    wrong["damaged"] = asked(place, ask="reserve", amount=0.1)
    assert [name for name, reply in wrong.items() if not reply["error"]] == []
    assert {reply["decision"] for reply in wrong.values()} == {"never"}
    with pytest.raises(CwmError, match="damaged: remove it"):
        open_spending(place, 1.0, lambda: 0.0)


def test_turns_are_in_order_and_a_pause_holds_for_all():
    state, rates = SpendingState(), {"requests_per_minute": 60, "tokens_per_minute": 6000}

    def seconds(ask="take", provider="p", now=1000.0, **more):
        nonlocal state
        request = SpendingRequest(ask=ask, provider=provider, **more)
        state, reply = state.answer(request, now)
        return reply.seconds

    assert [seconds(tokens=10, **rates) for _ in range(3)] == [0, 1, 2]
    assert seconds(tokens=1000, **rates) == 3
    seconds("correct", tokens=-800, **rates)  # there were but 200
    assert seconds(**rates) == pytest.approx(5)
    assert seconds(now=1020, tokens=6000, **rates) == 0
    assert seconds(now=1020, **rates) == pytest.approx(60)
    assert seconds(now=1080, again=True, **rates) == 0
    seconds("pause", now=1080, seconds=100)
    assert seconds(now=1080, again=True, **rates) == pytest.approx(100)
    assert seconds(now=1080, again=True, **rates) == pytest.approx(101)
    assert seconds(now=1080) == 100
    assert seconds(now=1080, provider="q") == 0


SPENDER = """
import sys
from cwm_cli.search.spending import CostLimit, Refusal, pauses
limit = CostLimit.shared(sys.argv[1])
print("begun", flush=True)
for pause in pauses():
    kept = limit.reserve(0.01)
    if kept is Refusal.NEVER:
        break
    if kept is not Refusal.WAIT:
        limit.settle(kept, 0.01)
"""


@pytest.mark.slow
def test_the_limit_holds_while_processes_are_killed(place):
    def spender(name):
        environment = os.environ | {SPENDING: f"file:{place}"}
        words = [sys.executable, "-c", SPENDER, name]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)

    others, seen = [spender(f"job {number}") for number in range(3)], []
    for _ in range(3):
        victim = spender("victim")
        assert victim.stdout.readline() == b"begun\n"
        seen.append(read_spending(place))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    lapse(place, "victim")
    assert [each.wait() for each in others] == [0, 0, 0]
    seen.append(read_spending(place))
    for state in seen:
        assert state.left >= -1e-9
    assert seen[-1].reserved == {}
    assert seen[-1].left < 0.01


def test_several_threads_share_a_socket(place, monkeypatch):
    ours, theirs = socket.socketpair()

    def serve():
        for line in ours.makefile("rb"):
            ours.sendall(answer_request(place, line))

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv(SPENDING, f"fd:{theirs.detach()}")
    limit, got = CostLimit.shared("a"), []
    threads = [threading.Thread(target=lambda: got.append(limit.reserve(0.3))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not isinstance(each, Refusal) for each in got) == 3
    assert len(read_spending(place).reserved) == 3
    ours.shutdown(socket.SHUT_RDWR)
    with pytest.raises(CwmError, match="the same command continues"):
        limit.reserve(0.1)


def test_requests_without_a_rate_limit_share_only_pauses(tmp_path, monkeypatch):
    place = tmp_path / "spending.json"
    open_spending(place, None, lambda: pytest.fail("there is no limit"))
    monkeypatch.setenv(SPENDING, f"file:{place}")
    assert CostLimit.shared("a") is None
    before = place.stat()
    told = []
    RateLimit("p").wait(tell=told.append)
    assert told == []
    assert place.stat().st_mtime_ns == before.st_mtime_ns  # nothing is written for nothing
    RateLimit("p").pause(0.2)
    began = time.monotonic()
    RateLimit("p").wait(tell=told.append)
    assert time.monotonic() - began >= 0.15
    assert len(told) == 1


PRICED = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path

from cwm_cli import hookimpl
from cwm_cli.search.contracts import Backend


@hookimpl
def cwm_backends():
    return {"priced": Priced}


@dataclass
class Priced(Backend):
    model: str = ""

    def complete(self, request):
        from cwm_cli.search.contracts import Completion, Usage

        with Path("charged.txt").open("a") as file:
            file.write("0.01\\n")
        if Path("charged.txt").stat().st_size == 25:  # the fifth of all
            os.kill(os.getpid(), signal.SIGKILL)
        text = f"```python\\nclass Environment: # {request.seed}\\n  pass\\n```"
        return Completion(text, Usage(cost=0.01))

    def worst_cost(self, request):
        return 0.02
"""


@pytest.mark.long
def test_eight_jobs_share_a_limit_and_continue_with_a_higher_one(cwm):
    cwm.install("priced", PRICED)
    words = (
        "benchmark",
        "--env",
        "FrozenLake-v1",
        "--backend",
        "priced",
        "--strategy",
        "zero-shot",
    )
    words = (*words, "--seeds", "8", "--budget", "4", "--workers", "4", "-o", "start=none")
    words = (*words, "--run", "r", "--json")
    charged, place = cwm.folder / "charged.txt", cwm.folder / "r" / "spending.json"

    poor = cwm(*words, "--max-cost", "0.16")
    assert poor.returncode == 0, poor.stderr
    state = read_spending(place)
    assert len(charged.read_text().split()) * 0.01 <= 0.16
    assert (state.lost, state.reserved) == (0.02, {})
    assert 0 <= state.left < 0.02  # which the next completion might cost
    assert "jobs stopped before --max-cost 0.16 was exceeded" in poor.stderr
    rows = json.loads(poor.stdout)["rows"]
    assert [row["state"] for row in rows].count("failed") == 1  # the killed job

    rich = cwm(*words, "--max-cost", "1")
    assert {row["completions"] for row in json.loads(rich.stdout)["rows"]} == {4}
    assert "--max-cost" not in rich.stderr
    spent = len(charged.read_text().split()) * 0.01
    assert read_spending(place).spent == pytest.approx(spent - 0.01)  # the lost one was more


@pytest.mark.slow
def test_all_jobs_wait_for_a_rate_limit(tmp_path, monkeypatch):
    place, began = tmp_path / "spending.json", time.time()
    open_spending(place, None, lambda: 0.0)
    monkeypatch.setenv(SPENDING, f"file:{place}")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer([rate_limited("1"), answer("42")]) as server:
        options = {"api_base": server.url, "backoff": 0.01, "requests_per_minute": 600}
        asked = Request((Message(role="user", content="?"),), 0, Move(GENERATE), None)
        for model in ("openai/gpt-4o-mini", "openai/gpt-4o"):
            assert find("backend", "litellm")(model=model, **options).complete(asked).text == "42"
        (rate,) = read_spending(place).providers.values()
    assert rate.paused_until >= began + 1
    assert rate.requests_due >= rate.paused_until + 0.2  # two requests after the pause
