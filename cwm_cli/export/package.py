"""The program of a run as a Python package with an environment of Gymnasium."""

import json
import sys
from importlib.metadata import packages_distributions
from importlib.resources import files

from cwm_cli.errors import CwmError
from cwm_cli.export.card import Findings, card
from cwm_cli.export.names import Names, names_of
from cwm_cli.export.publishing import Export, template
from cwm_cli.export.world import World, world_of
from cwm_cli.runs.searches import SearchRun
from cwm_cli.text import clean

BEST = "best.py"
NEEDED = ("gymnasium>=0.29", "numpy")


def package_of(run: SearchRun) -> Export:
    """Make a package of the best program of a run, which need not be over."""
    text, program = run.best_program(), (run.folder / BEST).read_bytes()
    findings = _findings(run, program)
    names, dataset = names_of(run.config.env), run.dataset()
    world = world_of(run.config, dataset, text)
    scores = {part: score.model_dump() for part, score in findings.scores.items()}
    facts = {
        "environment": run.config.env,
        **names._asdict(),
        "finished": findings.result is not None,
        "max_episode_steps": world.max_episode_steps,
        "train": scores.get("train"),
        "test": scores.get("test"),
    }
    early = f"the search is not over: this is the best of {len(findings.nodes)} completions so far"
    return Export(
        files={
            "README.md": card(run, dataset, names, world, findings).encode(),
            f"{names.module}/program.py": program,
            **_frame(run, names, world),
        },
        paths={"program": f"{names.module}/program.py"},
        facts=facts,
        use=("pip install $folder", f'env = gymnasium.make("{names.module}:{names.id}")'),
        notes=() if findings.result else (early,),
    )


def _findings(run: SearchRun, program: bytes) -> Findings:
    """Read what a run came to; a result of fewer completions than there are now is out of date."""
    nodes = list(run.nodes())
    same = [node for node in nodes if node.program.encode("utf-8", "replace") == program]
    if not same:
        raise CwmError(f"{run.folder / BEST} is of no node of the run: continue it to restore that")
    best = max(same, key=lambda node: node.verdict.score)
    if best.verdict.is_bug or not program.strip():
        raise CwmError(f"{run.folder} has no program that runs yet: continue it first")
    result = run.result()
    is_over = result is not None and result.get("completions") == len(nodes)
    return Findings(nodes, best, result if is_over else None)


def _frame(run: SearchRun, names: Names, world: World) -> dict[str, bytes]:
    """Return what makes a program a package."""
    environment = files("cwm_cli.export") / "templates" / "environment.py"
    about = {
        **names._asdict(),
        "environment": json.dumps(clean(run.config.env), ensure_ascii=False)[1:-1],
        "max_episode_steps": world.max_episode_steps,
        "dependencies": json.dumps([*NEEDED, *_distributions(run.config.tools)]),
    }
    init, project = (template(n).substitute(about) for n in ("__init__.py", "pyproject.toml"))
    return {
        "pyproject.toml": project.encode(),
        f"{names.module}/__init__.py": init.encode(),
        f"{names.module}/environment.py": environment.read_bytes(),
        f"{names.module}/world.json": (json.dumps(world.data) + "\n").encode(),
    }


def _distributions(tools: tuple[str, ...]) -> list[str]:
    """Name the packages that modules come from, or the modules where those are not installed."""
    tops = {tool.partition(".")[0] for tool in tools} - sys.stdlib_module_names
    owners = packages_distributions() if tops else {}
    names = {top: owners.get(top, [top]) for top in tops}
    return sorted(top if top in owning else owning[0] for top, owning in names.items())
