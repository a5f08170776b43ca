"""Answers that were paid for are kept, for all processes of a user, and cost nothing again."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cwm_cli.errors import CwmError
from cwm_cli.search.answers import AnswerCache, answer_key
from cwm_cli.search.contracts import GENERATE, Completion, Message, Move, Request, Usage
from cwm_litellm.backend import LiteLLM
from openai_server import OpenAIServer, answer, error
from recordings import cartpole

WRONG = f"Here it is.\n```python\n{cartpole(gravity=5)}```\n"
BROKEN = f"```python\n{cartpole(position='undefined_name')}```"
RIGHT = f"The gravity was wrong.\n```python\n{cartpole()}```\nThat is all."
MODEL = "openai/gpt-4o-mini"
QUESTION = Request((Message(role="user", content="Why?"),), 7, Move(GENERATE), None)


@pytest.fixture
def cache(tmp_path: Path) -> AnswerCache:
    return AnswerCache(tmp_path / "answers" / "a.sqlite")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")


def asked(server: OpenAIServer, **options: object) -> LiteLLM:
    return LiteLLM(MODEL, api_base=server.url, retries=0, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_second_run_of_the_same_search_costs_nothing(cwm) -> None:
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    fixed = [
        "--env",
        "CartPole-v1",
        "--model",
        MODEL,
        "--start",
        "none",
        "-o",
        "refine=none",
        "-o",
        "simplify=0",
    ]

    def search(server: OpenAIServer, folder: str, *more: str) -> tuple[dict, list[dict], str]:
        words = [*fixed, "--api-base", server.url, "--json", "--run", folder, *more]
        done = cwm.inside("synthesize", *words)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (cwm.folder / folder / "nodes.jsonl").open()]
        return json.loads(done.stdout), lines, done.stderr

    with OpenAIServer([answer(BROKEN), answer(WRONG), answer(RIGHT)]) as server:
        first, before, _ = search(server, "a", "--cache")
        assert (first["completions"], first["reused"], len(server.requests)) == (3, 0, 3)
        assert first["cost"] > 0
    with OpenAIServer([error(500)]) as server:
        again, after, told = search(server, "b", "--cache", "--max-cost", "0")
        assert server.requests == []
    assert (again["completions"], again["reused"], again["cost"]) == (3, 3, 0.0)
    assert "3 of 3 completions were reused" in told
    took = ("cost", "seconds", "reused")
    for line in before + after:
        for name in took:
            line["node"]["usage"].pop(name)
    assert after == before
    shown = cwm.inside("runs", "show", "b")
    assert "3 completions, 3 of them reused" in shown.stdout
    assert json.loads(cwm.inside("runs", "show", "b", "--json").stdout)["reused"] == 3
    assert (cwm.folder / "b" / "log.txt").read_text().count("is reused, which cost $0.0000") == 3
    kept = json.loads(cwm.inside("cache", "--json").stdout)
    assert (kept["entries"], kept["reused"], kept["unpriced"]) == (3, 3, 0)
    assert kept["saved"] == pytest.approx(first["cost"])
    for more in (["--cache", "--seed", "1"], ["--no-cache"]):  # another draw; not kept
        with OpenAIServer([answer(RIGHT)]) as server:
            other, _, _ = search(server, f"c{len(more)}", *more)
            assert (other["reused"], len(server.requests)) == (0, 1), more
    assert "completions  4\n" in cwm.inside("cache").stdout
    assert json.loads(cwm.inside("cache", "--clear", "--json").stdout)["entries"] == 0


def test_the_key_covers_everything_that_decides_an_answer() -> None:
    def options(**changed: object) -> LiteLLM:
        return LiteLLM(**{"model": MODEL, **changed})  # type: ignore[arg-type]

    plain = answer_key(options(), QUESTION)
    same = [
        (options(api_base="http://127.0.0.1:1"), QUESTION),
        (options(timeout=3.0), QUESTION),
        (options(), QUESTION._replace(step=4, allowance=1.0, model=MODEL)),
    ]
    others = [
        (options(model="openai/gpt-4o"), QUESTION),
        (options(temperature=0.5), QUESTION),
        (options(max_tokens=100), QUESTION),
        (options(), QUESTION._replace(seed=8)),
        (options(), QUESTION._replace(occurrence=1)),
        (options(), QUESTION._replace(weighed=True)),
        (options(), QUESTION._replace(messages=(Message(role="user", content="How?"),))),
        (options(), QUESTION._replace(messages=(Message(role="system", content="Why?"),))),
    ]
    assert {answer_key(*each) for each in same} == {plain}
    assert len({plain, *(answer_key(*each) for each in others)}) == len(others) + 1


def test_only_complete_answers_are_cached_with_their_usage(cache: AnswerCache) -> None:
    cut = answer("class", finish="length")
    with OpenAIServer([cut, answer("Because.")]) as server:
        backend = cache.around(asked(server, max_tokens=5))
        assert backend.complete(QUESTION).lacking
        whole = backend.complete(QUESTION)
        assert (whole.text, whole.usage.reused) == ("Because.", 0)
        count = len(server.requests)
        again = backend.complete(QUESTION)
        assert len(server.requests) == count
    assert again.text == "Because."
    assert (again.usage.reused, again.usage.cost) == (1, 0.0)
    assert again.usage.tokens == whole.usage.tokens  # so that a pool of models chooses as before
    weighed = QUESTION._replace(weighed=True)
    with OpenAIServer([answer("Yes.", tokens=[("Yes", -0.5), (".", -0.25)])]) as server:
        backend = cache.around(asked(server))
        first, again = backend.complete(weighed), backend.complete(weighed)
        assert len(server.requests) == 1
    assert first.log_probability == again.log_probability == -0.75
    assert stat.S_IMODE(cache.file.stat().st_mode) == 0o600
    written = b"".join(file.read_bytes() for file in cache.file.parent.iterdir())
    assert b"Because." in written
    assert b"Why?" not in written  # of prompts there are hashes
    assert b"sk-of-the-tests" not in written


WORKER = """
import sys
from pathlib import Path
from cwm_cli.search.answers import AnswerCache
from cwm_cli.search.contracts import Completion, Usage
cache, own = AnswerCache(Path(sys.argv[1])), sys.argv[2]
for number in range(15):
    for who in (own, "all"):
        cache.keep(f"{who}-{number}", "m", Completion(f"{who} {number}", Usage(1, 1, 0.5)))
        found = cache.find(f"{who}-{number}")
        assert found is not None and found.text == f"{who} {number}", cache.trouble()
"""


@pytest.mark.slow
def test_many_processes_share_the_file(cache: AnswerCache) -> None:
    words = [sys.executable, "-c", WORKER, str(cache.file)]
    processes = [
        subprocess.Popen([*words, str(number)], stderr=subprocess.PIPE) for number in range(4)
    ]
    assert [process.communicate()[1] for process in processes] == [b""] * 4
    found = cache.summary()
    assert (found.entries, found.reused, found.saved) == (5 * 15, 8 * 15, 8 * 15 * 0.5)


def test_old_and_least_recently_used_answers_are_removed(cache: AnswerCache) -> None:
    def keep(name: str) -> None:
        cache.keep(name, "m", Completion(name + 100_000 * "x", Usage()))

    for number in range(8):
        keep(f"{number}")
    assert cache.find("0") is not None
    cache.limit(gigabytes=0.0005)
    left = [number for number in range(8) if cache.find(f"{number}")]
    assert 0 in left
    assert left[1:] == [5, 6, 7][-len(left[1:]) :]
    assert cache.summary().bytes < 1_000_000
    keep("new")
    assert cache.find("new")
    cache.limit(days=0.0)
    assert cache.find("new") is None
    assert (cache.summary().entries, cache.summary().days) == (0, 0.0)


def test_a_damaged_cache_never_stops_a_search(cache: AnswerCache, tmp_path: Path) -> None:
    with OpenAIServer([answer("Because.")]) as server:
        for damage in (b"no database at all, " * 500, cache.file):
            backend = cache.around(asked(server))
            backend.complete(QUESTION)
            if isinstance(damage, bytes):
                cache.file.write_bytes(damage)
            else:  # from its second page on
                whole = damage.read_bytes()
                damage.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
            for beside in ("-wal", "-shm"):
                Path(f"{cache.file}{beside}").unlink(missing_ok=True)
            told = backend.complete(QUESTION)
            assert told.text == "Because."
            assert "was damaged: it is kept as a.sqlite.damaged" in told.note
            assert backend.complete(QUESTION).usage.reused == 1
        (tmp_path / "file").touch()
        nowhere = AnswerCache(tmp_path / "file" / "a.sqlite")
        backend = nowhere.around(asked(server))
        notes = [backend.complete(QUESTION).note for _ in range(2)]
    assert "(file exists): completions are neither saved nor reused" in notes[0]
    assert notes[1] == ""
    (tmp_path / "b.sqlite").mkdir()
    with pytest.raises(CwmError, match="cannot use the cache"):
        AnswerCache(tmp_path / "b.sqlite").limit(days=1)


@pytest.mark.slow
def test_only_language_models_are_cached(cwm) -> None:
    done = cwm.inside("synthesize", "--env", "CartPole-v1", "--cache", "--json", "--run", "r")
    assert done.returncode == 0, done.stderr
    assert "the backend 'induction' is not a language model" in done.stderr
    assert not (cwm.folder / "cache" / "cwm" / "answers").exists()
