"""The problem of writing a program for a coding task: prompts and verdicts from public tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from string import Template
from typing import Any, Literal

from cwm_apps.judging import JudgeRules, judge
from cwm_apps.tasks import CodingTask
from cwm_cli.problems.templates import messages, template
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, Message, Move, Problem, Verdict
from cwm_cli.search.reading import extract_program
from cwm_cli.text import clean


@dataclass(frozen=True)
class CodingProblem(Problem):
    """Find a program that passes the public tests of a task. Hidden tests are never used."""

    task: CodingTask
    sandbox: Sandbox
    seed: int = field(default=0, metadata={"option": False})
    rules: JudgeRules = "ours"
    """Rules for judging programs, as for `--judge`. The published rules accept other programs."""
    prompt: Literal["reasoned", "vanilla", "plan-and-solve"] = "reasoned"
    """Prompt for a program. reasoned: with tests and points to think about first; vanilla: the
    question alone, as published; plan-and-solve: make a plan and carry it out, as published."""
    prefill: bool = False
    """Start the answer in an assistant message and ask for no reasoning steps, as published. Many
    services refuse this or start their answer again."""

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Fill the template of the move's action."""
        return self._fill_template(move)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Leave out examples first, then the end of the question."""
        return self._fill_template(move, room)

    def _fill_template(self, move: Move, room: int | None = None) -> tuple[Message, ...]:
        """Fill the template, in at most `room` characters if there is a limit."""
        name = ""
        if move.action == GENERATE and (self.prefill or self.prompt != "reasoned"):
            name = "plan" if self.prompt == "plan-and-solve" else "vanilla"
        return messages(
            "coding",
            move,
            room=room,
            package=__package__,
            name=name,
            prefill=self.prefill,
            question=self.task.question.strip(),
            interface=self._interface(),
            examples=_examples(self.task),
        )

    def read(self, text: str, move: Move) -> str:
        """Return the program of a completion. The completion may continue a prefilled answer."""
        begun = self.prefill and move.action == GENERATE
        return extract_program(text, prefix=move.prefix, begun=begun)

    def judge(self, program: str) -> Verdict:
        """Run the program on the public tests."""
        judgement = judge(
            program, self.task, self.task.public, self.sandbox, seed=self.seed, rules=self.rules
        )
        failure, share = judgement.failure, judgement.share
        score = 0.0 if failure is not None and failure.is_bug else share
        return Verdict(score=score, parts={"tests": share}, failure=failure)

    def _interface(self) -> str:
        """Describe how the program is called."""
        name = "function" if self.task.function else "stdin"
        form = _part(name).substitute(function=self.task.function).strip()
        if code := self.task.starter_code.strip("\n"):
            form += "\n\n" + _part("starter").substitute(code=code.rstrip()).strip()
        limits = self.sandbox.limits
        used = {"seconds": f"{limits.cpu_seconds:g}", "memory": limits.memory_mb}
        return _part("interface").substitute(form=form, **used).strip()


def _part(name: str) -> Template:
    """Return a partial template of this problem."""
    return template(f"coding/{name}", __package__)


def _examples(task: CodingTask) -> str:
    """Show the first public tests that are short enough."""
    # Maximum length of the public tests that a prompt shows. Longer tests are left out.
    example_characters = 2000
    shown, room = [], example_characters
    for case in task.public[:3]:
        texts = [_text(case.input), _text(case.output)]
        room -= sum(map(len, texts))
        if room < 0:
            break
        shown += [
            f"{head}:\n```\n{clean(text, newlines=True)}\n```"
            for head, text in zip(("Input", "Expected"), texts, strict=True)
        ]
    return "\n\n".join(["\n\n## Some of the tests", *shown]) if shown else ""


def _text(value: Any) -> str:
    """Return the text of the input or the output of a test."""
    return value.rstrip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
