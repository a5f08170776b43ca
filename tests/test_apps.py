"""`cwm apps` as a user meets it: a language model on a real HTTP server, a real sandbox."""

import json
import os
import signal
import time
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from cwm_apps.runs import CodingRun
from cwm_cli.cli import command_line
from cwm_cli.runs.searches import JOURNAL, SearchRun, read_answers
from cwm_cli.search.contracts import Usage
from openai_server import OUT_OF_QUOTA, OpenAIServer, answer, hang
from processes import wait_until

app = command_line()


def stdin_tests(*inputs, function=lambda a, b: a + b):
    outputs = [f"{function(*map(int, text.split()))}\n" for text in inputs]
    return {"inputs": [f"{text}\n" for text in inputs], "outputs": outputs}


PROBLEMS = [
    {
        "id": 10,
        "question": "Print the sum of two numbers.",
        "difficulty": "introductory",
        "input_output": json.dumps(stdin_tests("1 2", "20 21", "7310 1", "1 84520")),
    },
    {
        "id": 11,
        "question": "Return the double of a number.",
        "difficulty": "interview",
        "starter_code": "class Solution:\n    def double(self, n):\n",
        "input_output": json.dumps(
            {
                "fn_name": "double",
                "inputs": [[1], [3], [7654], [98765]],
                "outputs": [2, 6, 15308, 197530],
            }
        ),
    },
    {
        "id": 12,
        "question": "Print the product of two numbers.",
        "difficulty": "interview",
        "input_output": json.dumps(stdin_tests("6 7", function=lambda a, b: a * b)),
    },
    {"id": 13, "question": "Broken.", "difficulty": "interview", "input_output": "{"},
    {
        "id": 14,
        "question": "Print the difference of two numbers.",
        "difficulty": "competition",
        "input_output": json.dumps(
            stdin_tests("9 2", "5 1", "70011 1", "80022 2", function=lambda a, b: a - b)
        ),
    },
]
HIDDEN = ("7310", "84520", "7654", "98765", "15308", "70011", "80022")

READ = "a, b = map(int, input().split())\n"
RIGHT = {
    "sum": f"{READ}print(a + b)\n",
    "double": "class Solution:\n    def double(self, n):\n        return 2 * n\n",
    "product": f"{READ}print(a * b)\n",
    "difference": f"{READ}print(a - b)\n",
}
WRONG = f"{READ}print(a + b if a == 1 else 0)\n"
BROKEN = f"{READ}print(undefined_name)\n"
SLOW = "while True:\n    pass\n"
GENERAL = "print({'1 2': 3, '20 21': 41}[input()])\n"


def block(program):
    return f"Here it is.\n```python\n{program}```\n"


def about(body):
    """Say which problem is asked about."""
    text = body["messages"][1]["content"]
    (name,) = [name for name in RIGHT if f"the {name} of" in text]
    return name


def solver(body):
    """Answer every question rightly."""
    return block(RIGHT[about(body)])


def mixed(body):
    """Answer wrongly at first, and rightly once a program is to be improved or fixed."""
    text = body["messages"][1]["content"]
    name = about(body)
    if "## The program" in text:
        return block(RIGHT[name])
    return block(
        {
            "sum": WRONG,
            "double": "def double(n):\n    return undefined_name\n",
            "product": RIGHT["product"],
            "difference": SLOW,
        }[name]
    )


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    return file


@pytest.fixture
def cwm_apps(tmp_path, monkeypatch, data):
    """Run `cwm apps` in this process on some problems."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-tests")
    monkeypatch.delenv("CWM_MODEL", raising=False)

    def invoke(*arguments, server=None, code=0):
        asking = arguments_for(server) if server else ()
        given = (
            () if "--data" in arguments or "--judge-only" in arguments else ("--data", str(data))
        )
        result = CliRunner().invoke(app, ["apps", *given, *asking, *arguments, "--json"])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return invoke


def arguments_for(server):
    asking = ("--model", "openai/gpt-4o-mini", "--api-base", server.url)
    return (*asking, "-o", "backoff=0.01", "-o", "cpu_seconds=0.5", "-o", "retries=0")


def facts(result):
    return json.loads(result.stdout)


def rows(found):
    names = ("id", "solved", "passed", "tests", "public_passed", "public_tests", "completions")
    return [[row[name] for name in names] for row in found["rows"]]


def tree(folder):
    """Return all nodes of all problems, without how long they took."""
    return {
        run.name: [replace(line.node, usage=Usage()) for line in read_answers(run)]
        for run in CodingRun.load(folder).started()
    }


def usages(folder):
    """Return what each completion took."""
    runs = CodingRun.load(folder).started()
    return [asdict(line.node.usage) for run in runs for line in read_answers(run)]


def test_programs_are_improved_and_fixed_until_the_public_tests_pass(cwm_apps, tmp_path):
    with OpenAIServer(mixed) as server:
        result = cwm_apps("--budget", "4", "--run", "r", server=server)
    found = facts(result)
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
    kept = json.loads((tmp_path / "r" / "problems" / "0010" / "result.json").read_text())
    assert (kept["strict"], kept["share"], kept["no_hidden_tests"]) == (True, 1.0, False)


def test_no_hidden_test_ever_reaches_the_model(cwm_apps):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        found = facts(cwm_apps("--budget", "3", server=server))
    assert found["solved"] == 0
    assert len(server.requests) == 12
    sent = "\n".join(json.dumps(request.body) for request in server.requests)
    assert not [number for number in HIDDEN if number in sent]


def test_a_program_that_passes_only_public_tests_is_not_strictly_right(cwm_apps):
    with OpenAIServer([answer(block(GENERAL))]) as server:
        found = facts(cwm_apps("--total", "1", server=server))
    assert rows(found) == [[10, False, 0, 2, 2, 2, 1]]
    assert (found["strict_accuracy"], found["test_case_average"]) == (0.0, 0.0)


@pytest.mark.slow
def test_two_half_ranges_merged_equal_the_whole(cwm_apps, tmp_path):
    with OpenAIServer(mixed) as server:
        whole = facts(cwm_apps("--run", "whole", server=server))
        cwm_apps("--total", "2", "--run", "a", server=server)
        cwm_apps("--idx", "2", "--total", "3", "--run", "b", server=server)
    merged = CliRunner().invoke(app, ["runs", "report", "a", "b", "--json"])
    assert merged.exit_code == 0, merged.output
    found = facts(merged)
    different = {"run", "rows", "seconds", "by_difficulty"}
    assert rows(found) == rows(whole)
    for name in whole.keys() - different:
        assert found[name] == whole[name], name
    assert {**tree(tmp_path / "a"), **tree(tmp_path / "b")} == tree(tmp_path / "whole")


@pytest.mark.slow
def test_merging_counts_a_problem_once_and_refuses_other_settings(cwm_apps):
    with OpenAIServer(solver) as server:
        cwm_apps("--total", "2", "--run", "a", server=server)
        cwm_apps("--idx", "1", "--total", "2", "--run", "b", server=server)
        cwm_apps("--total", "1", "--run", "c", "--seed", "5", server=server)
    merged = CliRunner().invoke(app, ["runs", "report", "a", "b", "--json"])
    assert [row["id"] for row in facts(merged)["rows"]] == [10, 11, 12]
    assert "problem 11 is in a and b: the first counts" in merged.stderr
    refused = CliRunner().invoke(app, ["runs", "report", "a", "c", "--json"])
    assert refused.exit_code == 1
    assert "a and c differ in seed" in refused.stderr


def test_the_same_command_continues_and_asks_nothing_again(cwm_apps):
    with OpenAIServer(solver) as server:
        first = cwm_apps("--total", "2", "--run", "r", server=server)
        asked = len(server.requests)
        again = cwm_apps("--total", "2", "--run", "r", server=server)
        assert len(server.requests) == asked == 2
        more = cwm_apps("--total", "3", "--run", "r", server=server)
        assert len(server.requests) == 3
        refused = cwm_apps("--run", "r", "--seed", "1", server=server, code=1)
    assert facts(again) == facts(first)
    assert "r continues" in again.stderr
    assert facts(more)["problems"] == 3
    assert "r was started with another seed" in refused.stderr


@pytest.mark.slow
def test_a_larger_budget_goes_on_with_what_is_not_solved(cwm_apps):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        cwm_apps("--total", "1", "--budget", "1", "--run", "r", server=server)
        found = facts(cwm_apps("--total", "1", "--budget", "3", "--run", "r", server=server))
    assert (found["completions"], len(server.requests)) == (3, 3)


@pytest.mark.slow
def test_without_a_name_the_newest_unfinished_run_of_the_same_problems_continues(cwm_apps):
    with OpenAIServer([answer(block(RIGHT["sum"])), OUT_OF_QUOTA]) as server:
        stopped = cwm_apps("--total", "3", server=server, code=1)
    assert stopped.stderr.count("Error: ") == 1
    assert "the same command continues" in stopped.stderr
    with OpenAIServer(solver) as server:
        other = facts(cwm_apps("--total", "2", server=server))
        continued = cwm_apps("--total", "3", server=server)
        fresh = facts(cwm_apps("--total", "3", "--new", server=server))
        assert len(server.requests) == 2 + 2 + 3
    assert " continues" in continued.stderr
    assert len({other["run"], facts(continued)["run"], fresh["run"]}) == 3
    assert facts(continued)["solved"] == 3


def test_a_task_that_has_changed_is_refused_and_the_others_go_on(cwm_apps, data):
    with OpenAIServer(solver) as server:
        cwm_apps("--total", "1", "--run", "r", server=server)
        data.write_text(data.read_text().replace("Print the sum", "Please print the sum"))
        result = cwm_apps("--total", "2", "--run", "r", server=server)
    assert "was started with another text or tests" in result.stderr
    assert [row["id"] for row in facts(result)["rows"]] == [10, 11]


def test_few_problems_have_several_completions_in_flight_each(cwm_apps):
    waiting = []

    def together(body):
        waiting.append(time.monotonic())
        wait_until(lambda: len(waiting) >= 4, 10)
        return block(RIGHT[about(body)])

    with OpenAIServer(together) as server:
        cwm_apps("--parallel", "4", "--total", "2", "--strategy", "zero-shot", server=server)
    assert max(waiting[:4]) - min(waiting[:4]) < 9


def test_a_problem_of_another_process_is_left_to_it(cwm_apps, tmp_path):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        cwm_apps("--total", "2", "--budget", "1", "--run", "r", server=server)
        with SearchRun.load(CodingRun.load(tmp_path / "r").problem_folder(10)):
            result = cwm_apps("--total", "2", "--budget", "2", "--run", "r", server=server)
    assert "another process is working on it" in result.stderr
    assert [row["completions"] for row in facts(result)["rows"]] == [1, 2]


@pytest.mark.slow
def test_a_cost_limit_is_for_all_problems_together(cwm_apps, tmp_path):
    with OpenAIServer(lambda body: block(WRONG)) as server:
        arguments = ("--run", "r", "--parallel", "3", "-o", "max_tokens=100")
        found = cwm_apps("--max-cost", "0.001", *arguments, server=server)
        spent = len(server.requests)
    assert 0 < spent < 80
    assert "--max-cost" in found.stderr
    cost = sum(node["cost"] for node in usages(tmp_path / "r"))
    assert 0 < cost <= 0.001
    with OpenAIServer(solver) as server:
        refused = cwm_apps(
            "--max-cost", "1", "--model", "openai/nobody-knows", server=server, code=1
        )
        assert "known price" in refused.stderr
        assert server.requests == []


def shell_arguments(server, data, *more):
    return ["apps", "--data", str(data), *arguments_for(server), "--run", "r", *more]


@pytest.fixture
def shell(cwm):
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    return cwm


def slowly(body):
    """Take a while, and answer differently whenever something else is asked."""
    time.sleep(0.15)
    name = about(body)
    mark = sum(map(ord, json.dumps(body["messages"]) + str(body["seed"]))) % 997
    return block(f"# {mark}\n{WRONG if mark % 3 else RIGHT[name]}")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_trees_and_asks_nothing_twice(
    shell, cwm_apps, data
):
    with OpenAIServer(slowly) as server:
        options = ("--budget", "5", "--strategy", "zero-shot")
        cwm_apps(*options, "--run", "uncut", server=server)
        asked = len(server.requests)
        process = shell.start(*shell_arguments(server, data, *options))
        problems = shell.folder / "r" / "problems"

        def nodes():
            return sum(file.read_bytes().count(b"\n") for file in problems.glob(f"*/{JOURNAL}"))

        assert wait_until(lambda: nodes() >= asked // 2 or process.poll() is not None, 60)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        before = nodes()
        assert before < asked
        resumed = shell.inside(*shell_arguments(server, data, *options, "--json"))
        assert resumed.returncode == 0, resumed.stderr
        uncut = tree(data.parent / "uncut")
        assert tree(shell.folder / "r") == uncut
        assert len(server.requests) <= 2 * asked + 1
        assert json.loads(resumed.stdout)["completions"] == asked == sum(map(len, uncut.values()))


@pytest.mark.long
def test_two_processes_share_a_folder_at_once(shell, data):
    with OpenAIServer(solver) as server:
        ranges = [("--total", "2"), ("--idx", "2", "--total", "3")]
        started = [shell.start(*shell_arguments(server, data, *range)) for range in ranges]
        for process in started:
            _, err = process.communicate(timeout=90)
            assert process.returncode == 0, err
    found = json.loads(shell.inside("runs", "report", "r", "--json").stdout)
    assert [row["id"] for row in found["rows"]] == [10, 11, 12, 14]
    assert (found["solved"], found["unfinished"], len(server.requests)) == (4, [], 4)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_that_waits_for_answers(shell, data):
    with OpenAIServer([hang]) as server:
        process = shell.start(*shell_arguments(server, data, "--parallel", "2"))
        assert wait_until(lambda: server.requests, 60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues the run r" in err
    assert "Traceback" not in err


def test_an_error_of_the_provider_lets_the_others_in_flight_finish(cwm_apps, tmp_path):
    def first_refused(body):
        if about(body) == "sum":
            wait_until(lambda: len(server.requests) >= 3)
            return OUT_OF_QUOTA
        time.sleep(1)
        return block(WRONG)

    with OpenAIServer(first_refused) as server:
        arguments = ("--parallel", "3", "--total", "3", "--run", "r")
        stopped = cwm_apps(*arguments, server=server, code=1)
        assert len(server.requests) == 3
    assert stopped.stderr.count("Error: ") == 1
    assert "quota" in stopped.stderr
    assert "the same command continues" in stopped.stderr
    assert {name: len(nodes) for name, nodes in tree(tmp_path / "r").items()} == {
        "0011": 1,
        "0012": 1,
    }


@pytest.mark.slow
def test_judge_only_rewrites_results_without_a_model_and_says_what_changed(cwm_apps, tmp_path):
    with OpenAIServer(solver) as server:
        before = facts(cwm_apps("--run", "r", server=server))
    same = cwm_apps("--judge-only", "--run", "r")
    assert facts(same)["rows"] == before["rows"]
    assert "no verdict has changed" in same.stderr
    file = tmp_path / "r" / "problems" / "0010" / "best.py"
    file.write_text(GENERAL)
    changed = cwm_apps("--judge-only", "--run", "r")
    words = "not solved (2 of 4 tests), before solved (4 of 4 tests)"
    assert facts(changed)["changed"] == {"10": words}
    assert rows(facts(changed))[0] == [10, False, 0, 2, 2, 2, 1]
    kept = json.loads((file.parent / "result.json").read_text())
    assert (kept["strict"], kept["share"]) == (False, 0.0)
    report = CliRunner().invoke(app, ["runs", "report", "r", "--json"])
    assert facts(report)["rows"] == facts(changed)["rows"]


@pytest.mark.slow
def test_solutions_from_elsewhere_are_judged_with_pass_at_k(cwm_apps, tmp_path):
    programs = {
        "10": [RIGHT["sum"], WRONG, GENERAL, BROKEN, RIGHT["sum"]],
        "11": [SLOW, RIGHT["double"], "", "def double(n): return n + n", "def double(n): return 2"],
        "13": [WRONG] * 5,
        "77": "of no problem",
    }
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(programs))
    options = ("--solutions", str(file), "-o", "cpu_seconds=0.5", "--run", "s")
    found = facts(cwm_apps(*options))
    assert rows(found) == [[10, True, 2, 2, 2, 2, 0], [11, False, 0, 2, 0, 2, 0]]
    values = [(one["k"], one["value"]) for one in found["pass_at"]]
    assert values == [(1, pytest.approx(0.4)), (5, pytest.approx(1.0))]
    lines = (tmp_path / "s" / "judged.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 10
    assert list(found["skipped"]) == ["13"]

    cut = "".join(lines[:4]) + lines[4][:20]
    (tmp_path / "s" / "judged.jsonl").write_text(cut)
    assert facts(cwm_apps(*options)) == found
    again = (tmp_path / "s" / "judged.jsonl").read_text()
    assert again.startswith("".join(lines[:4]))
    assert len(again.splitlines()) == 10

    file.write_text(json.dumps({**programs, "10": WRONG}))
    refused = cwm_apps(*options, code=1)
    assert "s was started with another solutions.digest" in refused.stderr


@pytest.mark.slow
def test_ranges_of_solutions_merge_to_the_whole(cwm_apps, tmp_path):
    file = tmp_path / "answers.json"
    file.write_text(json.dumps({"10": [RIGHT["sum"], WRONG], "12": [WRONG, RIGHT["product"]]}))
    whole = facts(cwm_apps("--solutions", str(file), "--run", "whole"))
    cwm_apps("--solutions", str(file), "--run", "a", "--total", "2")
    cwm_apps("--solutions", str(file), "--run", "b", "--idx", "1", "--total", "2")
    merged = facts(CliRunner().invoke(app, ["runs", "report", "a", "b", "--json"]))
    assert {**merged, "run": "whole"} == whole
    twice = CliRunner().invoke(app, ["runs", "report", "a", "whole", "--json"])
    assert {**facts(twice), "run": "whole", "notes": whole["notes"]} == whole
    assert "problem 10 of whole was judged before: the first counts" in twice.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no answers.json: write a JSON object"),
        ("{", "cannot be read"),
        ("[]", "is no object"),
        ('{"a": "x"}', "has 'a' for an id"),
        ('{"10": 3}', "has no programs for problem 10"),
        ('{"99": "x"}', "has no program of the problems asked for"),
    ],
)
def test_solutions_that_cannot_be_used_are_refused_in_one_line(cwm_apps, tmp_path, content, said):
    if content is not None:
        (tmp_path / "answers.json").write_text(content)
    refused = cwm_apps("--solutions", "answers.json", code=1)
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "coding problems need a language model: add --model PROVIDER/NAME"),
        (("--backend", "induction"), "the backend 'induction' works from transitions"),
        (("--backend", "litellm"), "needs a model"),
        (("--judge-only",), "--judge-only needs the folder of a run: add --run DIR"),
        (("--judge-only", "--run", "nowhere"), "nowhere is no run"),
        (("--judge-only", "--run", "r", "--model", "a/b"), "has no use for --model"),
        (("--model", "a/b", "--data", "nowhere"), "there is no nowhere: --data names"),
        (("--model", "a/b", "--idx", "7"), "there are 5, counted from 0"),
        (("--model", "a/b", "--difficulty", "eesy"), "unknown difficulty 'eesy'"),
        (("--model", "a/b", "--strategy", "gif-mtcs"), "did you mean gif-mcts?"),
        (("--model", "a/b", "-o", "cpu_second=1"), "did you mean cpu_seconds?"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(cwm_apps, arguments, said):
    refused = cwm_apps(*arguments, code=1)
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_runs_of_problems_are_listed_and_shown(cwm_apps):
    with OpenAIServer(solver) as server:
        name = facts(cwm_apps("--total", "2", server=server))["run"]
    listed = facts(CliRunner().invoke(app, ["runs", "list", "--json"]))["runs"]
    assert [(run["run"], run["result"]) for run in listed] == [(name, "2/2 solved")]
    shown = CliRunner().invoke(app, ["runs", "show", name])
    assert "2/2" in shown.stdout
    one = CliRunner().invoke(app, ["runs", "show", f"{name}/problems/0010"])
    assert one.exit_code == 0, one.output
    assert "best 1.000" in one.stdout
