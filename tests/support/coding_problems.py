"""Coding problems for the tests: right and wrong programs, answers, and readers of runs."""

import json
from dataclasses import replace
from pathlib import Path

from cwm_apps.runs import CodingRun
from cwm_cli.runs.searches import SearchRun
from cwm_cli.search.contracts import Usage


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

READ = "a, b = map(int, input().split())\n"

RIGHT = {
    "sum": f"{READ}print(a + b)\n",
    "double": "class Solution:\n    def double(self, n):\n        return 2 * n\n",
    "product": f"{READ}print(a * b)\n",
    "difference": f"{READ}print(a - b)\n",
}

WRONG = f"{READ}print(a + b if a == 1 else 0)\n"

SLOW = "while True:\n    pass\n"


def block(program):
    return f"Here it is.\n```python\n{program}```\n"


def about(body):
    """Return the problem of a request."""
    text = body["messages"][1]["content"]
    (name,) = [name for name in RIGHT if f"the {name} of" in text]
    return name


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


def arguments_for(server):
    asking = ("--model", "openai/gpt-4o-mini", "--api-base", server.url)
    return (*asking, "-o", "backoff=0.01", "-o", "cpu_seconds=0.5", "-o", "retries=0")


def rows(found):
    names = ("id", "solved", "passed", "tests", "public_passed", "public_tests", "completions")
    return [[row[name] for name in names] for row in found["rows"]]


def nodes(folder):
    """Return all nodes of all problems, without how long they took."""
    return {
        path.name: [replace(node, usage=Usage()) for node in SearchRun.load(path).nodes()]
        for path in CodingRun.load(Path(folder)).started()
    }


def costs(folder):
    """Return the costs of the completions of a run, by problem."""
    return {
        path.name: [node.usage.cost for node in SearchRun.load(path).nodes()]
        for path in CodingRun.load(Path(folder)).started()
    }


def total_cost(folder):
    return sum(sum(some) for some in costs(folder).values())


def shell_arguments(server, data, *more):
    return ["apps", "--data", str(data), *arguments_for(server), "--run", "r", *more]
