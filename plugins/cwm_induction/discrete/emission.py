"""The text of a program that says what was found."""

import textwrap

import numpy as np

from cwm_induction.discrete.changes_text import change_lines
from cwm_induction.discrete.conditions import WIDTH
from cwm_induction.discrete.drift import Chances
from cwm_induction.discrete.drift_text import chances_constant, outcomes_lines, step_lines
from cwm_induction.discrete.outcomes_text import outcome_lines
from cwm_induction.discrete.shapes import action_lines, observation_expression, state_lines
from cwm_induction.discrete.wording import Model, Wording, assignments, listed, mentions


def write_program(model: Model, title: str, findings: list[str]) -> str:
    """Write the program; `title` and `findings` become the docstring of its class."""
    wording = Wording(model)
    layout, names = model.dynamics.layout, wording.names
    step = _by_chance(wording, model.chances) if model.chances else _step(wording)
    initial, setters = state_lines(model.frame, layout, names)
    answer = observation_expression(model.frame, layout, names)
    constants = wording.constants.lines
    body = [
        f'"""{title}',
        "",
        *findings,
        '"""',
        "",
        *constants,
        *([""] if constants else []),
        *_function("__init__(self)", initial),
        *_function("set_state(self, observation)", setters),
        *_function("observation(self)", _folded(f"return {answer}")),
        *step,
    ]
    indented = [f"    {line}" if line else "" for line in body]
    numpy = ["import numpy as np", "", ""] if "np." in answer else []
    return "\n".join([*numpy, "class Environment:", *indented, ""])


def _folded(line: str) -> list[str]:
    """Break a line that ends in a display where it is too long."""
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _step(wording: Wording) -> list[str]:
    """Write `step`."""
    moves, rules = change_lines(wording)
    outcomes = outcome_lines(wording)
    text = "\n".join(rules + outcomes)
    aims = [wording.names[i] for i in wording.moving]
    aims = [name for name in aims if mentions(text, f"aimed_{name}")]
    same = wording.unchanged() if "unchanged" in text else []
    whole = "\n".join([*moves, text, *same])
    used = [name for name in wording.names if mentions(whole, name)]
    new = [wording.names[i] for i in wording.changing]
    body = [
        *action_lines(wording.model.frame),
        *assignments("", "self.", used),
        *moves,
        *assignments("aimed_", "new_", aims),
        *rules,
        *same,
        *outcomes,
        *assignments("self.", "new_", new),
        "return self.observation(), reward, terminated",
    ]
    return _function("step(self, action)", body)[:-1]


def _by_chance(wording: Wording, chances: Chances) -> list[str]:
    """Write what may follow and what is likeliest."""
    axes = np.flatnonzero(chances.drift.steps.any(axis=0)).tolist()
    wording.changing, wording.known = axes, set(axes)
    names = [wording.names[axis] for axis in axes]
    constant = chances_constant(wording.constants, chances.drift, names, axes)
    rules = outcome_lines(wording)
    rules = [*(wording.unchanged() if "unchanged" in "\n".join(rules) else []), *rules]
    text = "\n".join(rules)
    used = [name for name in wording.names if name in names or mentions(text, name)]
    read = [*action_lines(wording.model.frame), f"{listed(used)} = {listed(used, 'self.')}"]
    radices = [wording.dynamics.sizes.radices[axis] for axis in axes]
    worth = dict(zip(wording.rewards, chances.worth, strict=True))
    return [
        *outcomes_lines(constant, names, radices, rules, read),
        *step_lines(wording.constants, names, worth),
    ]


def _function(signature: str, body: list[str]) -> list[str]:
    """Write a method and a blank line."""
    return [f"def {signature}:", *[f"    {line}" for line in body], ""]
