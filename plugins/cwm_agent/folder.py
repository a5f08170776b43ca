"""The scratch folder of an agent: the prompt, the rows that it may see, and a checker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, parse_json, read_bytes, read_text
from cwm_cli.data.spaces import json_value
from cwm_cli.errors import CwmError
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox.failures import LONGEST_PROGRAM
from cwm_cli.search.contracts import Request

PROMPT, ROWS, CHECKER, PROGRAM, COST = (
    "PROMPT.md",
    "rows.jsonl",
    "check.py",
    "program.py",
    "cost.json",
)

TASK = """\
Write the program that is described below into the file `program.py` of this folder. Only this file
is read; it must contain the whole program.
{files}
You have {seconds:g} seconds{cost}. Then all your processes end, and `program.py` is your answer.
If you know what you spent, write it into `cost.json` as {{"cost": US_DOLLARS}}.
"""

FILES = """
- `rows.jsonl`: recorded transitions, one JSON object per line.
- `check.py`: `{python} check.py` scores `program.py` on these rows and shows wrong ones. The final
  score is computed elsewhere, also on transitions that are not in this folder.
"""

PARENT = "- `program.py`: the program to change.\n"


def write_folder(
    folder: Path, request: Request, *, seconds: float, dollars: float | None, python: str
) -> None:
    """Write all files for the agent.

    Args:
        folder: An empty folder.
        request: The request; of a `WorldModelProblem` only the rows that prompts may show are
            written.
        seconds: The time limit, which the prompt names.
        dollars: The cost limit, which the prompt names, or None.
        python: The command of the Python interpreter that runs the checker.
    """
    listed = ""
    if isinstance(request.problem, WorldModelProblem):
        problem = request.problem
        write_rows(folder, problem.dataset[problem.shown])
        listed = FILES.format(python=python)
    if request.move.program:
        (folder / PROGRAM).write_text(request.move.program, encoding="utf-8")
        listed += PARENT
    cost = "" if dollars is None else f" and {dollars:g} US dollars"
    task = TASK.format(files=listed, seconds=seconds, cost=cost)
    parts = [task, *(message.content for message in request.messages)]
    (folder / PROMPT).write_text("\n\n".join(parts) + "\n", encoding="utf-8", errors="replace")


def write_rows(folder: Path, rows: Dataset) -> None:
    """Write transitions as lines of JSON, and the checker for them."""
    with (folder / ROWS).open("w", encoding="utf-8") as file:
        for row in rows:
            data = {
                "episode": row.episode,
                "observation": json_value(row.observation),
                "action": json_value(row.action),
                "next_observation": json_value(row.next_observation),
                "reward": row.reward,
                "terminated": row.terminated,
                "truncated": row.truncated,
            }
            if row.valid is not None:
                data["valid_actions"] = list(row.valid)
            file.write(json.dumps(data) + "\n")
    settings = {
        "observation_space": rows.observation_space.to_json(),
        "action_space": rows.action_space.to_json(),
        "rewards": rows.has_rewards,
        "ends": rows.has_ends,
        "tolerances": rows.tolerances,
    }
    script = files("cwm_agent").joinpath("checker.py").read_text(encoding="utf-8")
    (folder / CHECKER).write_text(
        script.replace(
            "SETTINGS: dict[str, Any] = {}",
            f"SETTINGS: dict[str, Any] = json.loads({json.dumps(settings)!r})",
        ),
        encoding="utf-8",
    )


def read_program(folder: Path, before: str) -> tuple[str, str]:
    """Return the program that the agent wrote, or "" and the reason why there is none.

    Args:
        folder: The folder of the agent.
        before: The program that was in the folder before, or "".
    """
    file = folder / PROGRAM
    if file.is_symlink():  # it could name a file that the agent must not publish
        return "", f"{PROGRAM} is a link"
    try:
        text = read_text(file, 4 * LONGEST_PROGRAM)
    except UnreadableError as error:
        return "", f"{PROGRAM}: {error.reason}"
    if not text.strip():
        return "", f"{PROGRAM} is empty"
    if before and text.strip() == before.strip():
        return "", f"{PROGRAM} is unchanged"
    return text, ""


def read_cost(folder: Path) -> float | None:
    """Return the cost in US dollars that the agent reports, None if it reports none."""
    file = folder / COST
    try:
        if file.is_symlink():
            return None
        data: Any = parse_json(read_bytes(file, 10_000), finite=True)
    except (CwmError, OSError, ValueError):
        return None
    cost = data.get("cost") if isinstance(data, Mapping) else None
    if not isinstance(cost, int | float) or isinstance(cost, bool) or cost < 0:
        return None
    return float(cost)
