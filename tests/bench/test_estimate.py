"""Tests of cost estimates, and of the consent that `cwm benchmark` requests before it starts."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cwm_cli.bench.estimate import CostEstimate, SearchesToCome, estimated
from cwm_cli.runs.files import write_object
from cwm_cli.search.models import ModelPool
from cwm_litellm.backend import LiteLLM
from openai_server import OpenAIServer, answer
from recordings import cartpole

WRONG = f"```python\n{cartpole(gravity=5)}```"
MODEL = "openai/gpt-4o-mini"  # $0.15 and $0.60 per million tokens


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")


def of(model: str, completions: int, *, left: float | None = None, **options: int) -> CostEstimate:
    backend = LiteLLM(model, **options)  # type: ignore[arg-type]
    return estimated([SearchesToCome(model, backend, 2, completions)], in_flight=4, left=left)


def test_estimate_computes_tokens_dollars_and_hours() -> None:
    usual = of(MODEL, 1000)
    assert usual.expected == pytest.approx(1000 * (3000 * 0.15e-6 + 1500 * 0.6e-6))
    assert usual.worst == pytest.approx(1000 * (3000 * 0.15e-6 + 16384 * 0.6e-6))
    assert usual.hours == pytest.approx(1000 * 20 / 4 / 3600)
    first, second = usual.lines
    assert "2 jobs with up to 1,000 completions" in first
    assert "3 million prompt tokens and 1.5 million completion tokens (assumed" in first
    assert "about $1.35, $10.28 if every completion had 16,384 tokens" in second
    assert "1.4 hours of waiting with 4 in flight" in second
    alone = CostEstimate(usual.models, in_flight=0).lines[1]  # as on a cluster of unknown size
    assert (
        "5.6 hours of waiting with one completion at a time: divide by the number in flight"
        in alone
    )
    limited = of(MODEL, 1000, left=1.0)
    assert (limited.expected, limited.worst) == (1.0, 1.0)
    assert "--max-cost leaves $1.00" in limited.lines[1]
    assert of(MODEL, 1000, max_tokens=1000).worst < usual.expected
    assert "with reasoning" in of("openai/gpt-5", 10).lines[0]
    unknown = of("hosted_vllm/own", 10)
    assert unknown.unpriced == ("hosted_vllm/own",)
    assert "the price of hosted_vllm/own is unknown" in unknown.lines[1]
    assert "$" not in unknown.lines[1]


@pytest.mark.parametrize("header", ["[]", "{}", '{"config": 3}', "[" * 5000, None])
def test_damaged_runs_are_ignored(header: str | None) -> None:
    usual, folder = of(MODEL, 10), Path("runs") / "damaged"
    folder.mkdir(parents=True)
    (folder / "nodes.jsonl").write_text("")
    if header is None:
        os.mkfifo(folder / "run.json")
    else:
        (folder / "run.json").write_text(header)
    assert of(MODEL, 10) == usual


def test_models_of_a_pool_share_the_completions_by_weight() -> None:
    names = ("openai/gpt-4o-mini", "openai/gpt-4o", "openai/gpt-4.1")
    members = {name: LiteLLM(name) for name in names}
    weights = dict(zip(names, (2.0, 1.0, 1.0), strict=True))
    text = "openai/gpt-4o-mini=2,openai/gpt-4o,openai/gpt-4.1"
    found = estimated([SearchesToCome(text, ModelPool(members, weights), 7, 41)], in_flight=1)
    assert [each.model for each in found.models] == [*names]
    assert [each.completions for each in found.models] == [20, 10, 11]
    alone = (of(name, each.completions) for name, each in zip(names, found.models, strict=True))
    assert found.expected == pytest.approx(sum(each.expected for each in alone))
    assert "7 jobs with up to 41 completions" in found.lines[0]


def test_estimate_measures_the_problems_of_earlier_runs(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 50, "seconds": 2.0}
    node = {"id": 0, "step": 0, "parent": -1, "action": "generate", "program": "", "prompt": ""}
    line = {"node": node | {"verdict": {"score": 0.5}, "usage": usage}, "text": ""}
    header = {"kind": "search", "description": "", "source": "some"}
    choices = {"env": "apps/1", "dataset": "", "strategy": "zero-shot", "backend": "litellm"}
    for number in range(3):
        folder = tmp_path / "runs" / "apps" / "problems" / f"{number:04}"
        folder.mkdir(parents=True)
        model = MODEL if number else "openai/gpt-4o"
        write_object(folder / "run.json", header | {"config": choices | {"model": model}})
        (folder / "nodes.jsonl").write_text(json.dumps(line) + "\n")
    (found,) = of(MODEL, 10).models
    assert (found.measured, found.prompt_tokens, found.answer_tokens) == (2, 900, 50)


@pytest.mark.long
def test_estimate_of_a_continued_run_uses_its_measured_completions(cwm) -> None:
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    words = ["benchmark", "--env", "CartPole-v1", "--strategy", "zero-shot", "--model", MODEL]
    words += [
        "-o",
        "start=none",
        "-o",
        "refine=none",
        "-o",
        "simplify=0",
        "--run",
        "r",
        "--workers",
        "1",
    ]
    with OpenAIServer([answer(WRONG, prompt_tokens=2000, completion_tokens=500)]) as server:
        words += ["--api-base", server.url]
        refused = cwm.inside(*words, "--budget", "2", "--ask-above", "0")
        assert refused.returncode == 1
        assert "--yes" in refused.stderr.splitlines()[-1]
        assert server.requests == []
        assert not (cwm.folder / "r").exists()
        assert "assumed" in refused.stderr
        done = cwm.inside(*words, "--budget", "2", "--ask-above", "0", "--yes")
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 2
        more = cwm.inside(*words, "--budget", "5", "--json")
    text = " ".join(more.stderr.split())
    assert "1 jobs with up to 3 completions: about 6,000 prompt tokens" in text
    assert "1,500 completion tokens (measured on 2 completions)" in text
    offline = cwm.inside("benchmark", "--env", "CartPole-v1", "--ask-above", "0", "--run", "o")
    assert offline.returncode == 0, offline.stderr
    assert "Estimate" not in offline.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "code"),
    [pytest.param("y\n", 0, marks=pytest.mark.long), ("n\n", 1), ("\n", 1), ("", 130)],
)
def test_benchmark_asks_for_consent_on_a_terminal(typed: str, code: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "cwm_cli", "benchmark", "--env", "CartPole-v1", "--run", "r"]
    words += ["--model", MODEL, "--strategy", "zero-shot", "--budget", "1", "--ask-above", "0"]
    words += ["-o", "start=none", "-o", "refine=none", "-o", "simplify=0", "--json"]
    with OpenAIServer([answer(WRONG)]) as server:
        terminal, end = pty.openpty()
        variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        process = subprocess.Popen(
            [*words, "--api-base", server.url],
            stdin=end,
            stderr=end,
            stdout=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
        os.close(end)
        told = b""
        while b"start? [y/N]" not in told:
            told += os.read(terminal, 4096)
        assert server.requests == []
        if typed:
            os.write(terminal, typed.encode())
        else:
            process.send_signal(signal.SIGINT)
        os.set_blocking(terminal, False)
        while process.poll() is None:  # a terminal that nobody reads from fills
            try:
                told += os.read(terminal, 4096)
            except OSError:
                time.sleep(0.05)
        out = process.stdout.read() if process.stdout else b""
        assert process.returncode == code, told
        assert len(server.requests) == (code == 0)
    assert (tmp_path / "r").exists() == (code == 0)
    assert not out if code else json.loads(out)["rows"]
