"""Coding problems from end to end: a language model on a real HTTP server, a real sandbox.

Each kind of work is done once by the command; what else there is to say is said of the functions
that it calls.
"""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from coding_problems import (
    READ,
    RIGHT,
    SLOW,
    WRONG,
    about,
    arguments_for,
    block,
    costs,
    mixed,
    nodes,
    rows,
    shell_arguments,
    total_cost,
)
from cwm_apps.runs import CodingRun
from cwm_apps.solving import judge_again
from cwm_cli.cli import command_line
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import report_on
from cwm_cli.runs.searches import ANSWERS, JOURNAL, SearchRun
from openai_server import OUT_OF_QUOTA, OpenAIServer, answer, hang, holds
from processes import wait_until

pytestmark = pytest.mark.usefixtures("here")

HIDDEN = ("7310", "84520", "7654", "98765", "15308", "70011", "80022")

BROKEN = f"{READ}print(undefined_name)\n"
GENERAL = "print({'1 2': 3, '20 21': 41}[input()])\n"


def solver(body):
    """Answer every request with a right program."""
    return block(RIGHT[about(body)])


def merged(*folders):
    """Report on several runs together."""
    return report_on([Path(folder) for folder in folders]).as_json()


@pytest.mark.slow
def test_command_improves_and_fixes_programs_until_public_tests_pass(command, here):
    with OpenAIServer(mixed) as server:
        result, found = command(*arguments_for(server), "--budget", "4", "--run", "r")
    assert found.keys() >= {
        *("problems", "solved", "strict_accuracy", "test_case_average", "by_difficulty"),
        *("completions", "cost", "run", "skipped"),
    }
    assert (found["problems"], found["solved"], found["run"]) == (4, 4, "r")
    assert list(found["skipped"]) == ["13"]
    assert list(found["by_difficulty"]) == ["introductory", "interview", "competition"]
    assert rows(found) == [
        [10, True, 2, 2, 2, 2, 2],
        [11, True, 2, 2, 2, 2, 2],
        [12, True, 0, 0, 1, 1, 1],
        [14, True, 2, 2, 2, 2, 2],
    ]
    assert found["no_hidden"] == 1
    assert result.stderr.count("input_output is not JSON") >= 1
    asked = {(about(request.body), "Expected:" in request.prompt) for request in server.requests}
    assert ("sum", True) in asked
    improving = [r.prompt for r in server.requests if "it fails tests of the problem" in r.prompt]
    assert any("20 21" in text and "41" in text for text in improving)
    fixing = [r.prompt for r in server.requests if "before it answers a single test" in r.prompt]
    assert any("NameError" in text for text in fixing)
    kept = json.loads((here / "r" / "problems" / "0010" / "result.json").read_text())
    assert (kept["strict"], kept["share"], kept["no_hidden_tests"]) == (True, 1.0, False)
    listed = CliRunner().invoke(command_line(), ["runs", "list", ".", "--json"])
    assert [run["result"] for run in json.loads(listed.stdout)["runs"]] == ["4/5 solved"]
    shown = CliRunner().invoke(command_line(), ["runs", "show", "r"])
    assert "2/2" in shown.stdout


@pytest.mark.slow
def test_hidden_tests_never_reach_the_model(work):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        assert work(server, budget=3).facts["solved"] == 0
    assert len(server.requests) == 12
    sent = "\n".join(json.dumps(request.body) for request in server.requests)
    assert not [number for number in HIDDEN if number in sent]


def test_program_that_passes_only_public_tests_is_not_strictly_right(work):
    with OpenAIServer([answer(block(GENERAL))]) as server:
        found = work(server, total=1).facts
    assert rows(found) == [[10, False, 0, 2, 2, 2, 1]]
    assert (found["strict_accuracy"], found["test_case_average"]) == (0.0, 0.0)


@pytest.mark.long
def test_ranges_merge_and_other_settings_are_rejected(work):
    with OpenAIServer(mixed) as server:
        whole = work(server, run="whole").facts
        work(server, total=2, run="a")
        work(server, idx=2, total=3, run="b")
        found = merged("a", "b")
        assert rows(found) == rows(whole)
        for name in whole.keys() - {"run", "rows", "seconds", "by_difficulty"}:
            assert found[name] == whole[name], name
        assert {**nodes("a"), **nodes("b")} == nodes("whole")
        work(server, total=1, run="c", seed=5)
    twice = merged("a", "whole")
    assert [row["id"] for row in twice["rows"]] == [10, 11, 12, 14]
    assert "problem 11 is in a and whole: the first counts" in twice["notes"]
    with pytest.raises(CwmError, match="a and c differ in seed"):
        merged("a", "c")


@pytest.mark.slow
def test_same_choices_continue_a_run_without_new_requests(work):
    with OpenAIServer(solver) as server:
        first = work(server, total=2, run="r")
        again = work(server, total=2, run="r")
        assert len(server.requests) == 2
        more = work(server, total=3, run="r")
        assert len(server.requests) == 3
        with pytest.raises(CwmError, match="r was started with other settings, seed"):
            work(server, run="r", seed=1)
    assert again.facts == first.facts
    assert "Run: r continues" in again.said
    assert more.result.report.summary.problems == 3


@pytest.mark.slow
def test_larger_budget_continues_only_unsolved_problems(work):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        work(server, total=1, budget=1, run="r")
        assert work(server, total=1, budget=3, run="r").facts["completions"] == 3
    assert len(server.requests) == 3


@pytest.mark.slow
def test_unnamed_run_continues_newest_unfinished_run_of_same_problems(work):
    refusing = OpenAIServer([answer(block(RIGHT["sum"])), OUT_OF_QUOTA])
    with refusing as server, pytest.raises(CwmError, match="the same command continues"):
        work(server, total=3)
    with OpenAIServer(solver) as server:
        other, continued = work(server, total=2), work(server, total=3)
        fresh = work(server, total=3, new=True)
        assert len(server.requests) == 2 + 2 + 3
    assert " continues" in continued.said
    assert len({other.result.run, continued.result.run, fresh.result.run}) == 3
    assert continued.facts["solved"] == 3


def test_run_that_fails_before_any_result_leaves_no_folder(work, here):
    with OpenAIServer([OUT_OF_QUOTA]) as server, pytest.raises(CwmError, match="quota") as failed:
        work(server, run="some/r")
    assert "the same command" not in str(failed.value)
    assert not (here / "some" / "r").exists()


@pytest.mark.slow
def test_changed_task_is_rejected_and_other_tasks_continue(work, data):
    with OpenAIServer(solver) as server:
        work(server, total=1, run="r")
        data.write_text(data.read_text().replace("Print the sum", "Please print the sum"))
        done = work(server, total=2, run="r")
    assert "was started with another text or tests" in done.said
    assert [row["id"] for row in done.facts["rows"]] == [10, 11]


def test_few_problems_have_several_completions_in_flight(work):
    waiting = []

    def together(body):
        waiting.append(time.monotonic())
        wait_until(lambda: len(waiting) >= 4, 10)
        return block(RIGHT[about(body)])

    with OpenAIServer(together) as server:
        work(server, parallel=4, total=2, strategy="zero-shot")
    assert max(waiting[:4]) - min(waiting[:4]) < 9


@pytest.mark.slow
def test_problem_locked_by_another_process_is_skipped(work):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        run = work(server, total=2, budget=1, run="r").result.run
        with SearchRun.load(CodingRun.load(run).problem_folder(10)):
            done = work(server, total=2, budget=2, run="r")
    assert "another process is using it" in done.said
    assert [row["completions"] for row in done.facts["rows"]] == [1, 2]


@pytest.mark.slow
def test_cost_limit_is_shared_by_all_problems_and_can_be_raised(work):
    asked = {"run": "r", "parallel": 3, "options": {"max_tokens": 100}}
    with OpenAIServer(lambda body: block(WRONG)) as server:
        done = work(server, max_cost=0.0005, **asked)
        assert 0 < len(server.requests) < 80
        assert "stopped before --max-cost 0.0005 was exceeded: the same command with a" in done.said
        assert "another completion might exceed --max-cost" in done.said
        assert 0 < total_cost("r") <= 0.0005
        stopped = {name for name, some in costs("r").items() if len(some) < 20}
        kept = {path.parent.name for path in Path("r").glob("problems/*/result.json")}
        assert stopped and not stopped & kept  # a stopped problem is not finished
        again = work(server, max_cost=0.0005, **asked)
        assert 0 < total_cost("r") <= 0.0005
        assert set(map(int, stopped)) <= set(again.facts["unfinished"])
        more = work(server, max_cost=0.001, **asked)
        assert 0.0005 < total_cost("r") <= 0.001 or more.facts["unfinished"] == []
        before = len(server.requests)
        with pytest.raises(CwmError, match="known price"):
            work(server, max_cost=1, model="openai/nobody-knows")
        assert len(server.requests) == before


@pytest.mark.slow
def test_estimate_is_reported_before_paying_and_large_estimates_need_confirmation(
    command, work, here
):
    told = []

    def decline(estimate):
        told.append(estimate)
        return False

    with OpenAIServer(lambda body: block(WRONG)) as server:
        with pytest.raises(CwmError, match="not started, no cost"):
            work(server, budget=2, run="r", ask=decline)
        refused, _ = command(*arguments_for(server), "--run", "r", "--ask-above", "0", code=1)
        assert "exceeds --ask-above 0: add --yes" in refused.stderr
        assert server.requests == []
        assert not (here / "r").exists()
        done = work(server, budget=2, total=3, run="r", parallel=2, ask=lambda estimate: True)
        assert "Estimate: 3 jobs with up to 6 completions:" in done.said
        asked = len(server.requests)
        with pytest.raises(CwmError, match="not started"):
            work(server, budget=5, run="r", workers=2, parallel=3, max_cost=1.0, ask=decline)
        assert len(server.requests) == asked
        done = work(server, budget=2, total=3, run="r", ask=decline)
        assert "Estimate" not in done.said  # no completion is left, so there is no question
    first, last = told
    assert (first.jobs, first.completions, first.models[0].measured) == (5, 10, 0)
    # the fields of a line that is not JSON are unknown until it is reached
    assert (last.jobs, last.completions, last.in_flight) == (5, 3 * 3 + 2 * 5, 6)
    assert (last.models[0].measured, last.models[0].prompt_tokens) == (6, 100)
    assert last.left == pytest.approx(1.0 - total_cost("r"))


def test_too_long_prompt_is_shortened_with_a_note(work):
    sizes = []

    def respond(body):
        sizes.append(sum(len(message["content"]) for message in body["messages"]))
        return holds(sizes[0] // 4 - 5)(solver(body))(body)

    with OpenAIServer(respond) as server:
        done = work(server, total=1, run="r")
    assert [row["solved"] for row in done.facts["rows"]] == [True]
    assert "problem 10: the prompt is too long for openai/gpt-4o-mini: shortened" in done.said
    whole, short = (received.prompt for received in server.requests)
    assert "Some of the tests" in whole
    assert "Some of the tests" not in short


def slowly(body):
    """Answer after a delay, with another answer for each request."""
    time.sleep(0.15)
    name = about(body)
    mark = sum(map(ord, json.dumps(body["messages"]) + str(body["seed"]))) % 997
    return block(f"# {mark}\n{WRONG if mark % 3 else RIGHT[name]}")


@pytest.mark.slow
def test_killed_run_continues_to_same_nodes_without_repeated_requests(shell, work, data):
    with OpenAIServer(slowly) as server:
        options = ("--budget", "5", "--strategy", "zero-shot")
        uncut = nodes(work(server, budget=5, strategy="zero-shot", run="uncut").result.run)
        asked = len(server.requests)
        process = shell.start(*shell_arguments(server, data, *options))
        problems = shell.folder / "r" / "problems"

        def lines():
            return sum(file.read_bytes().count(b"\n") for file in problems.glob(f"*/{JOURNAL}"))

        assert wait_until(lambda: lines() >= asked // 2 or process.poll() is not None, 60)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        assert lines() < asked
        resumed = shell.inside(*shell_arguments(server, data, *options, "--json"))
        assert resumed.returncode == 0, resumed.stderr
        assert nodes(shell.folder / "r") == uncut
        assert len(server.requests) <= 2 * asked + 1
        assert json.loads(resumed.stdout)["completions"] == asked == sum(map(len, uncut.values()))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--parallel", "2")])
def test_answer_not_judged_before_a_kill_is_not_requested_again(shell, data, more):
    with OpenAIServer(lambda body: block(SLOW)) as server:
        arguments = shell_arguments(server, data, "--budget", "3", "--total", "1", *more)
        answers = shell.folder / "r" / "problems" / "0010" / ANSWERS
        for count in (1, 2):
            process = shell.start(*arguments)
            while not answers.exists() or len(server.requests) < count:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            for descendant in psutil.Process(process.pid).children(recursive=True):
                descendant.kill()
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=20)
        done = shell.inside(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["completions"] == 3
        undelivered = 2 if more else 0  # one of two in flight, at each kill
        assert 3 <= len(server.requests) <= 3 + undelivered
    assert not answers.exists()


@pytest.mark.long
def test_two_processes_can_share_a_folder(shell, data):
    with OpenAIServer(solver) as server:
        ranges = [("--total", "2"), ("--idx", "2", "--total", "3")]
        started = [shell.start(*shell_arguments(server, data, *range)) for range in ranges]
        for process in started:
            _, err = process.communicate(timeout=90)
            assert process.returncode == 0, err
    found = merged(shell.folder / "r")
    assert [row["id"] for row in found["rows"]] == [10, 11, 12, 14]
    assert (found["solved"], found["unfinished"], len(server.requests)) == (4, [], 4)


@pytest.mark.long
def test_ctrl_c_ends_a_run_that_waits_for_answers(shell, data):
    with OpenAIServer([hang]) as server:
        process = shell.start(*shell_arguments(server, data, "--parallel", "2"))
        assert wait_until(lambda: server.requests, 60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues the run r" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_provider_error_lets_completions_in_flight_finish(work):
    def first_refused(body):
        if about(body) == "sum":
            wait_until(lambda: len(server.requests) >= 3)
            return OUT_OF_QUOTA
        time.sleep(0.5)
        return block(WRONG)

    with OpenAIServer(first_refused) as server:
        with pytest.raises(CwmError, match=r"quota.*the same command continues"):
            work(server, parallel=3, total=3, run="r")
        assert len(server.requests) == 3
    assert {name: len(some) for name, some in nodes("r").items()} == {"0011": 1, "0012": 1}


@pytest.mark.slow
def test_judge_only_rewrites_results_without_model_and_reports_changes(command, work, here):
    with OpenAIServer(solver) as server:
        before = work(server, total=2, run="r").facts
    same, found = command("--judge-only", "--run", "r")
    assert found["rows"] == before["rows"]
    assert "no verdict has changed" in same.stderr
    file = here / "r" / "problems" / "0010" / "best.py"
    file.write_text(GENERAL)
    changed = judge_again("r").as_json()
    words = "not solved (2 of 4 tests), before solved (4 of 4 tests)"
    assert changed["changed"] == {"10": words}
    assert rows(changed)[0] == [10, False, 0, 2, 2, 2, 1]
    kept = json.loads((file.parent / "result.json").read_text())
    assert (kept["strict"], kept["share"]) == (False, 0.0)
    assert merged("r")["rows"] == changed["rows"]


@pytest.mark.slow
def test_solutions_file_is_judged_with_pass_at_k(command, work, here):
    programs = {
        "10": [RIGHT["sum"], WRONG, GENERAL, BROKEN, RIGHT["sum"]],
        "11": [SLOW, RIGHT["double"], "", "def double(n): return n + n", "def double(n): return 2"],
        "13": [WRONG] * 5,
        "77": "of no problem",
    }
    file = here / "answers.json"
    file.write_text(json.dumps(programs))
    _, found = command("--solutions", str(file), "-o", "cpu_seconds=0.5", "--run", "s")
    assert rows(found) == [[10, True, 2, 2, 2, 2, 0], [11, False, 0, 2, 0, 2, 0]]
    values = [(one["k"], one["value"]) for one in found["pass_at"]]
    assert values == [(1, pytest.approx(0.4)), (5, pytest.approx(1.0))]
    journal = here / "s" / "judged.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 10
    assert list(found["skipped"]) == ["13"]

    journal.write_text("".join(lines[:4]) + lines[4][:20])
    again = work(solutions=file, run="s")
    assert again.facts == found
    assert journal.read_text().startswith("".join(lines[:4]))
    assert len(journal.read_text().splitlines()) == 10

    file.write_text(json.dumps({**programs, "10": WRONG}))
    with pytest.raises(CwmError, match=r"s was started with other settings, solutions\.digest"):
        work(solutions=file, run="s")


@pytest.mark.slow
def test_solutions_can_be_judged_by_published_rules(command, work, here):
    program = "if __name__ == '__main__':\n    " + RIGHT["sum"].replace("\n", "\n    ")
    (here / "answers.json").write_text(json.dumps({"10": program}))
    ours = work(solutions=here / "answers.json", run="o")
    _, found = command("--solutions", "answers.json", "--judge", "published", "--run", "p")
    assert (ours.facts["solved"], found["solved"]) == (1, 0)
    header = json.loads((here / "p" / "run.json").read_text())
    assert header["config"]["options"]["problem"] == {"rules": "published"}
    with pytest.raises(CwmError, match="rules"):
        work(solutions=here / "answers.json", run="p")


@pytest.mark.slow
def test_ranges_of_solutions_merge(work, here):
    file = here / "answers.json"
    file.write_text(json.dumps({"10": [RIGHT["sum"], WRONG], "12": [WRONG, RIGHT["product"]]}))
    whole = work(solutions=file, run="whole").facts
    work(solutions=file, run="a", total=2)
    work(solutions=file, run="b", idx=1, total=2)
    assert {**merged("a", "b"), "run": "whole"} == whole
    twice = merged("a", "whole")
    assert {**twice, "run": "whole", "notes": whole["notes"]} == whole
    assert "problem 10 of whole was judged before: the first counts" in twice["notes"]


BAD_SOLUTIONS = {
    None: "there is no answers.json: write a JSON object",
    "{": "cannot be read",
    "[]": "is not a JSON object",
    '{"a": "x"}': "has the invalid id 'a'",
    '{"10": 3}': "has no programs for problem 10",
    '{"99": "x"}': "has no program for the chosen problems",
}


def test_unusable_solutions_are_rejected_in_one_line(work, here):
    said = {}
    for content in BAD_SOLUTIONS:
        if content is not None:
            (here / "answers.json").write_text(content)
        with pytest.raises(CwmError) as refused:
            work(solutions="answers.json")
        said[content] = str(refused.value)
    wrong = {
        content: said[content]
        for content, words in BAD_SOLUTIONS.items()
        if words not in said[content]
    }
    assert not wrong
    assert not [words for words in said.values() if "\n" in words]


WRONG_USAGE = {
    (
        "--judge-only",
        "--run",
        "d",
        "--judge",
        "published",
    ): "cannot be combined with --judge: leave it out",
    (): "coding problems need a language model: add --model PROVIDER/NAME",
    ("--backend", "induction"): "the backend 'induction' works from transitions",
    ("--backend", "litellm"): "needs a model",
    ("--judge-only",): "--judge-only needs the folder of a run: add --run DIR",
    ("--judge-only", "--run", "nowhere"): "nowhere is not a run folder",
    ("--judge-only", "--run", "r", "--model", "ollama/b"): "cannot be combined with --model",
    ("--model", "ollama/b", "--data", "nowhere"): "there is no nowhere: give a folder",
    ("--model", "ollama/b", "--idx", "7"): "there are 5, counted from 0",
    ("--model", "ollama/b", "--difficulty", "eesy"): "unknown difficulty 'eesy'",
    ("--model", "ollama/b", "--strategy", "gif-mtcs"): "did you mean gif-mcts?",
    ("--model", "ollama/b", "-o", "cpu_second=1"): "did you mean cpu_seconds?",
}


def test_wrong_usage_is_rejected_in_one_line(command):
    said = {arguments: command(*arguments, code=1)[0].stderr for arguments in WRONG_USAGE}
    wrong = {given: said[given] for given, words in WRONG_USAGE.items() if words not in said[given]}
    assert not wrong
    assert not [words for words in said.values() if len(words.splitlines()) != 1]
