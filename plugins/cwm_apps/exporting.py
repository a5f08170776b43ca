"""The programs of coding problems, as `cwm apps --solutions` reads them."""

import json
import shlex
from collections.abc import Iterator

from cwm_apps.folder import Folder
from cwm_apps.gathering import gather
from cwm_cli import __version__
from cwm_cli.errors import CwmError
from cwm_cli.export.publishing import MARK, Export, template
from cwm_cli.runs.searches import SearchRun

FILE = "solutions.json"


def solutions_of(folder: Folder) -> Export:
    """Gather the best program of each problem that has one."""
    header, gathered = folder.header(), gather([folder])
    programs = dict(_programs(folder))
    if not programs:
        raise CwmError(f"{folder.path} has found no program: continue it first")
    config = header.config
    facts = {
        "problems": len(header.problems),
        "programs": len(programs),
        "solved": sum(outcome.strict for outcome in gathered.outcomes.values()),
        "finished": not gathered.unfinished,
    }
    card = template("SOLUTIONS.md", __package__).substitute(
        facts,
        answers=config.model or config.backend,
        strategy=config.strategy,
        seed=config.seed,
        version=__version__,
        data=_data(config.dataset),
        mark=MARK,
    )
    text = json.dumps(programs, indent=2) + "\n"
    left = f"{len(gathered.unfinished)} problems are not finished: best programs so far"
    return Export(
        files={FILE: text.encode(), "README.md": card.encode()},
        paths={"solutions": FILE},
        facts=facts,
        use=(f"cwm apps{_data(config.dataset)} --solutions $folder/{FILE}",),
        notes=(left,) if gathered.unfinished else (),
    )


def _data(name: str) -> str:
    """Return the option that names the problems, by what a run calls them."""
    known = {"shipped": "", "hub": " --data hub"}
    return known.get(name, f" --data {shlex.quote(name.partition(' ')[2])}")


def _programs(folder: Folder) -> Iterator[tuple[str, str]]:
    """Yield the best programs by the ids of their problems."""
    for path in folder.started():
        file = SearchRun.load(path).folder / "best.py"
        program = file.read_text(encoding="utf-8") if file.exists() else ""
        if program.strip():
            yield str(int(path.name)), program
