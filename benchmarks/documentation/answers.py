"""Answers of a loopback server that replaces language models in the documentation.

The server has OpenAI's API. For some usual environments, it answers with programs that were written
from memory (`benchmarks/recalled`); its first answer for CartPole has a wrong gravity. For the
shipped coding problems, it answers with a solution. All other answers predict no change.
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
"""Words of a description, and the module in `benchmarks/recalled` with the environment."""

UNCHANGED = '''class Environment:
    """Nothing changes."""

    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 0.0, False
'''

RULES = "1. A red item opens the door.\n2. A key of any colour opens the door.\n"
"""The answer to requests for rules in words."""


def answering() -> LanguageServer:
    """Return the server, a context manager."""
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
    is_first = not re.search(r"This program (runs|fails)", prompt)
    return program.replace('"gravity": 9.8', '"gravity": 5.0') if is_first else program


def _solution(prompt: str) -> str | None:
    for question, solution in _problems().items():
        if question in prompt:
            return solution
    return None


@cache
def _problems() -> dict[str, str]:
    """Return a solution of each shipped problem, by the first 120 characters of its question."""
    folder = ROOT / "data" / "cwm_data" / "apps"
    known = {}
    for problem in sorted(folder.glob("*")):
        solutions = problem / "solutions.json"
        if solutions.exists():
            question = (problem / "question.txt").read_text(encoding="utf-8").strip()
            known[question[:120]] = json.loads(solutions.read_text(encoding="utf-8"))[0]
    return known
