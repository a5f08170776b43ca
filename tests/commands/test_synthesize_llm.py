"""`cwm synthesize` with a language model: the whole way, through LiteLLM to a real HTTP server."""

import json
import signal
import time

import pytest

from openai_server import OUT_OF_QUOTA, OpenAIServer, answer, error, hang, holds, rate_limited
from recordings import cartpole

WRONG = f"Here it is.\n```python\n{cartpole(gravity=5)}```\n"
BROKEN = f"```python\n{cartpole(position='undefined_name')}```"
RIGHT = f"The gravity was wrong.\n```python\n{cartpole()}```\nThat is all."


@pytest.fixture
def ask(cwm):
    """Run `cwm synthesize` on CartPole against a server."""
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"

    def arguments(server, *more):
        fixed = ["--env", "CartPole-v1", "--api-base", server.url, "-o", "backoff=0.01"]
        fixed += ["--start", "none", "-o", "refine=none", "-o", "simplify=0", *more]
        return ["synthesize", "--model", "openai/gpt-4o-mini", *fixed]

    cwm.arguments = arguments
    return cwm


@pytest.mark.slow
def test_generate_fix_and_improve_lead_to_an_exact_program(ask):
    with OpenAIServer([answer(BROKEN), rate_limited("0"), answer(WRONG), answer(RIGHT)]) as server:
        run = ask.inside(*ask.arguments(server, "--json", "--run", "r", "-o", "retries=2"))
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert (result["solved"], result["completions"], result["tokens"]) == (True, 3, 330)
    assert 0 < result["cost"] < 0.01
    assert result["test"]["accuracy"] == 1.0
    lines = [json.loads(line) for line in (ask.folder / "r" / "nodes.jsonl").open()]
    nodes = [line["node"] for line in lines]
    assert [node["action"] for node in nodes] == ["generate", "fix", "improve"]
    assert lines[2]["text"] == RIGHT
    first, fix, _, improve = [request.prompt for request in server.requests]
    assert "A pole is attached by an un-actuated joint to a cart" in first
    assert "undefined_name" in fix
    assert "NameError" in fix
    assert "GRAVITY" not in improve
    assert "5 * sin" in improve
    assert "recorded" in improve


@pytest.mark.slow
def test_a_preset_asks_as_published_and_is_part_of_what_a_run_is(ask):
    preset = ("-o", "preset=paper", "-o", "top_p=0.5", "--run", "r", "--json")
    with OpenAIServer([answer(WRONG)]) as server:
        stopped = ask.inside(*ask.arguments(server, *preset, "--budget", "1"))
    assert stopped.returncode == 0, stopped.stderr
    [asked] = server.requests
    assert asked.body["messages"][-1] == {"role": "assistant", "content": "```python"}
    assert "step by step" not in asked.prompt
    sampling = [asked.body[name] for name in ("temperature", "top_p", "max_tokens")]
    assert sampling == [0.6, 0.5, 4096]
    header = json.loads((ask.folder / "r" / "run.json").read_text())
    options = header["config"]["options"]
    assert options["problem"]["feedback"] == "paper"
    assert (options["strategy"]["preset"], options["strategy"]["empty_line"]) == ("paper", True)
    assert (options["backend"]["temperature"], options["backend"]["top_p"]) == (0.6, 0.5)
    with OpenAIServer([answer(RIGHT)]) as server:
        other = ask.inside(*ask.arguments(server, "--run", "r", "--json"))
        assert other.returncode == 1
        assert "preset" in other.stderr
        same = ask.inside(*ask.arguments(server, *preset))
    assert json.loads(same.stdout)["completions"] == 2


@pytest.mark.slow
def test_own_description_replaces_the_description_in_prompts(ask):
    (ask.folder / "rules.txt").write_text("A rod stands on a wagon. Keep the rod upright.\n")
    (ask.folder / "empty.txt").write_text("\n")
    described = ("--run", "r", "--json", "--budget", "1", "--description", "rules.txt")
    with OpenAIServer([answer(WRONG)]) as server:
        run = ask.inside(*ask.arguments(server, *described))
        assert run.returncode == 0, run.stderr
        [asked] = server.requests
        assert "Keep the rod upright" in asked.prompt
        assert "un-actuated joint" not in asked.prompt
        other = ask.inside(*ask.arguments(server, *described[:-2]))
        assert other.returncode == 1
        assert "description" in other.stderr
        empty = ask.inside(*ask.arguments(server, "--run", "e", "--description", "empty.txt"))
        assert empty.returncode == 1
        assert "empty.txt is empty" in empty.stderr


@pytest.mark.slow
def test_an_answer_without_code_costs_a_completion_and_the_search_goes_on(ask):
    script = [answer("I cannot do that."), *[answer("")] * 3, answer(RIGHT)]
    with OpenAIServer(script) as server:
        arguments = ask.arguments(server, "--json", "--strategy", "zero-shot", "--run", "r")
        run = ask.inside(*arguments)
    result = json.loads(run.stdout)
    assert (result["solved"], result["completions"], result["tokens"]) == (True, 3, 550)
    assert 0 < result["cost"] < 0.01
    nodes = [json.loads(line)["node"] for line in (ask.folder / "r" / "nodes.jsonl").open()]
    failures = [node["verdict"]["failure"] for node in nodes[:2]]
    assert [failure["kind"] for failure in failures] == ["no_answer", "no_answer"]
    assert failures[1]["message"] == "the answer was empty"


@pytest.mark.long
def test_a_prompt_that_is_too_long_costs_no_run_and_is_said_in_one_line(ask):
    small = holds(1700)  # tokens: the first prompt has fewer, and the next one more

    def respond(body):
        improves = "This program runs" in body["messages"][-1]["content"]
        return small(RIGHT if improves else WRONG)(body)

    with OpenAIServer(respond) as server:
        arguments = ask.arguments(server, "--json", "--run", "r", "--strategy", "worldcoder")
        arguments += ["-o", "evidence_tokens=0"]
        run = ask.inside(*arguments)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert (result["solved"], result["completions"]) == (True, 2)
    assert run.stderr.count("the prompt is too long for openai/gpt-4o-mini: shortened from") == 1
    assert "shortened from" in (ask.folder / "r" / "log.txt").read_text()
    _, whole, short = (received.prompt for received in server.requests)
    assert "(1) " in whole
    assert "(1) " not in short
    assert "5 * sin" in short
    assert "A pole is attached by an un-actuated joint to a cart" in short
    assert "class Environment:\n    def __init__(self): ..." in short
    again = ask.inside(
        *("synthesize", "--env", "CartPole-v1", "--backend", "replay", "--model", "r", "--json"),
        *("--strategy", "worldcoder", "--run", "again", "-o", "evidence_tokens=0"),
    )
    assert json.loads(again.stdout)["solved"]


@pytest.mark.slow
def test_an_error_of_the_provider_keeps_the_run_which_then_goes_on(ask):
    with OpenAIServer([answer(WRONG), OUT_OF_QUOTA]) as server:
        stopped = ask.inside(*ask.arguments(server, "--run", "r"))
    assert stopped.returncode == 1
    assert stopped.stderr.count("Error: ") == 1
    assert "quota" in stopped.stderr
    assert "the same command continues" in stopped.stderr
    with OpenAIServer([answer(RIGHT)]) as server:
        resumed = ask.inside(*ask.arguments(server, "--run", "r", "--json"))
    result = json.loads(resumed.stdout)
    assert (result["solved"], result["completions"]) == (True, 2)


@pytest.mark.slow
def test_parallel_answers_that_did_arrive_are_kept_when_one_fails(ask):
    with OpenAIServer([answer(WRONG), error(401, "no", "invalid_api_key")]) as server:
        arguments = ask.arguments(server, "--run", "r", "--parallel", "2", "--budget", "2")
        assert ask.inside(*arguments).returncode == 1
    assert len((ask.folder / "r" / "nodes.jsonl").read_text().splitlines()) == 1


def test_the_cost_limit_reserves_what_an_answer_may_cost(ask):
    with OpenAIServer([answer(WRONG)]) as server:
        run = ask.inside(*ask.arguments(server, "--max-cost", "0.0001", "--json"))
    assert json.loads(run.stdout)["completions"] == 0
    assert server.requests == []
    assert "--max-cost" in run.stderr


def test_a_model_of_unknown_price_is_refused_with_a_cost_limit(ask):
    with OpenAIServer([answer(WRONG)]) as server:
        arguments = ask.arguments(server, "--max-cost", "1")
        arguments[2] = "openai/nobody-knows"
        refused = ask.inside(*arguments)
    assert refused.returncode == 1
    assert "known price" in refused.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_search_that_waits_for_an_answer(ask):
    with OpenAIServer([hang]) as server:
        process = ask.start(*ask.arguments(server, "--run", "r"))
        deadline = time.monotonic() + 60
        while not server.requests:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted before the first completion: the same command starts again" in err
    assert not (ask.folder / "r").exists()
    assert "Traceback" not in err
