"""What answers the documentation's commands in place of a language model: a server, and its words.

It speaks OpenAI's API on the loopback. Of the usual environments it knows programs that were
written from memory (`benchmarks/recalled`): asked for CartPole the first time it is wrong about
gravity. Of coding problems it knows those that ship. To all else it says that nothing changes.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.documentation.pages import ROOT

sys.path.append(str(ROOT / "tests" / "support"))

from language_server import LanguageServer

KNOWN = {
    "A pole is attached by an un-actuated joint": "cart_pole",
    "sinusoidal valley": "mountain_car",
    "inverted pendulum swingup": "pendulum",
    "two links connected linearly": "acrobot",
}
"""Words of a description, and the module of `benchmarks/recalled` that has the environment."""

UNCHANGED = '''class Environment:
    """Nothing changes."""

    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 0.0, False
'''

RULES = "1. A red item opens the door.\n2. A key of any colour opens the door.\n"
"""An answer where rules in words are asked for."""


def answering() -> LanguageServer:
    """Return the server, to be entered as a context manager."""
    return LanguageServer(script=respond)


def respond(body: dict[str, Any]) -> str:
    """Return the answer to a request."""
    prompt = "\n".join(message["content"] for message in body["messages"])
    if solution := _solution(prompt):
        return f"```python\n{solution}```\n"
    if "class Environment" not in prompt and re.search(r"\brules?\b", prompt):
        return RULES
    for words, module in KNOWN.items():
        if words in prompt:
            return f"```python\n{_recalled(module, prompt)}```\n"
    return f"I do not know this one.\n\n```python\n{UNCHANGED}```\n"


def _recalled(module: str, prompt: str) -> str:
    program = (Path(__file__).parents[1] / "recalled" / f"{module}.py").read_text(encoding="utf-8")
    asked_first = not re.search(r"This program (runs|fails)", prompt)
    return program.replace('"gravity": 9.8', '"gravity": 5.0') if asked_first else program


def _solution(prompt: str) -> str | None:
    for question, solution in _problems().items():
        if question in prompt:
            return solution
    return None


@cache
def _problems() -> dict[str, str]:
    """Return the beginning of each problem that ships, and a program that solves it."""
    folder = ROOT / "data" / "cwm_data" / "apps"
    known = {}
    for problem in sorted(folder.glob("*")):
        solutions = problem / "solutions.json"
        if solutions.exists():
            question = (problem / "question.txt").read_text(encoding="utf-8").strip()
            known[question[:120]] = json.loads(solutions.read_text(encoding="utf-8"))[0]
    return known
