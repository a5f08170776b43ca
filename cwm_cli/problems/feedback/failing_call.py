"""For a fix prompt: the recorded step that made a program fail, and similar steps."""

import re
from collections.abc import Iterator

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.problems.feedback.kinds import StepKinds
from cwm_cli.problems.feedback.steps import RecordedSteps
from cwm_cli.sandbox.failures import Failure, shown
from cwm_cli.text import clean

ALIKE = 3
"""Similar steps that are shown."""
MOST_BEFORE = 12
"""Steps of the episode that are shown if a program with memory fails."""

CALL = re.compile(r"when asked for (.*)")
STEPS = re.compile(r", (\d+) steps? with correct")
FORMAT = "(observation | action | {changes} | reward)"


def failing_steps(rows: Dataset, visible: np.ndarray, failure: Failure) -> str:
    """Return the recorded step of the call that failed, and similar steps, or "" if unknown.

    The message of the failure contains the arguments of the call. The result of a hidden row is
    never shown.

    Args:
        rows: All rows that the program was asked for.
        visible: The mask of the rows that prompts may show.
        failure: The failure of the program.
    """
    found = CALL.search(failure.message)
    if found is None or not visible.any():
        return ""
    call = found[1].strip()
    memory = call.startswith("reset(")
    failed = list(_in_episodes(rows, call) if memory else _on_its_own(rows, call))
    if not failed:
        return ""
    steps = RecordedSteps(rows)
    kinds = StepKinds(steps)
    shape = FORMAT.format(changes="changed cells" if steps.is_board else "next observation")
    known = [row for row in failed if visible[row]]
    different = len({steps.line(row) for row in failed})
    lines: list[str] = []
    if not known:
        lines.append("The call that failed belongs to a recorded step that is not shown.")
    elif memory:
        lines.append(
            "The recorded episode up to the step that failed (observation | action | reward):"
        )
        lines += steps.chain(steps.up_to(known[0], MOST_BEFORE))
    else:
        cut = "" if different == 1 else f", one of {different} that the error message may mean"
        lines += [f"The recorded step that failed{cut} {shape}:", steps.line(known[0])]
    free = visible.copy()
    free[failed] = False
    near: list[int] = []
    while not memory and len(near) < ALIKE and (row := kinds.nearest(failed[0], free)) is not None:
        near.append(row)
        free[row] = False
    if near:
        lines.append(f"Similar recorded steps {shape}:")
        lines += [steps.line(row, like=known[0] if known else None) for row in near]
    return clean("\n".join(lines), newlines=True)


def _on_its_own(rows: Dataset, call: str) -> Iterator[int]:
    """Yield the rows whose observation and action a call of `set_state` names."""
    for row in range(len(rows)):
        if call.endswith(f"({_action(rows, row)})"):
            observation = rows.observation_space.unpack("observations", rows.columns, row)
            if call.startswith(f"set_state({shown(observation)}) and "):
                yield row


def _in_episodes(rows: Dataset, call: str) -> Iterator[int]:
    """Yield the rows at which a call along an episode that starts with `reset` may be."""
    found = STEPS.search(call)
    count = int(found[1]) if found else 0
    starts = np.flatnonzero(~RecordedSteps(rows).follows)
    for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
        row = int(start) + count
        if row < stop and call.endswith(f"({_action(rows, row)})"):
            observation = rows.observation_space.unpack("observations", rows.columns, int(start))
            if call.startswith(f"reset({shown(observation)})"):
                yield row


def _action(rows: Dataset, row: int) -> str:
    return shown(rows.action_space.unpack("actions", rows.columns, row))
