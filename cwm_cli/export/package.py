"""The program of a run as a Python package with an environment of Gymnasium.

Beside the program it needs spaces, starts, limits and seeds (`World`), a name, and a card that
says what it is, how right it is and how it came to be. `export_of` finds out what a folder holds
that can be exported.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli._version import __version__
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score
from cwm_cli.export.publishing import MARK, Export, template
from cwm_cli.planning.model import key
from cwm_cli.registry import environment
from cwm_cli.runs.listing import load, run_folders
from cwm_cli.runs.places import named, placed
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import DATASET, kind_of
from cwm_cli.sandbox.abilities import abilities_of
from cwm_cli.search.contracts import Node, total
from cwm_cli.text import clean, money, share, tokens

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.runs.searches import SearchConfig

NAMESPACE = "WorldModel"


class Names(NamedTuple):
    """The id of an exported environment, and the name of its module and distribution."""

    id: str
    module: str


def names_of(environment: str) -> Names:
    """Name the world model of an environment; the module that registers that is left out."""
    bare = environment.rpartition(":")[2]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", bare).strip("-.") or "Environment"
    words = re.sub(r"[^a-z0-9]+", "_", bare.lower()).strip("_")
    first = "environment" if words[:1].isdigit() else ""
    module = "_".join(filter(None, (first, words, "world_model")))
    return Names(f"{NAMESPACE}/{name}", module)


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""What texts of Gymnasium are made of where nothing else is said."""


class World(NamedTuple):
    """What `world.json` holds, and the time limit, None where none is known."""

    data: dict[str, Any]
    max_episode_steps: int | None


def world_of(config: SearchConfig, dataset: Dataset, program: str) -> World:
    """Gather what was recorded, and what the environment itself says where it can be made."""
    starts = _starts(dataset)
    limit, allowed, drawn = _asked(config, starts, dataset.metadata.get("reset_seeds", []))
    known = [{"valid_actions": actions} if actions else {} for actions in allowed]
    data = {
        "seed": config.seed,
        "draws": "random" in program,
        "abilities": abilities_of(program)._asdict(),
        "names_actions": dataset.has_valid_actions,
        "characters": _characters(dataset),
        "observation_space": dataset.observation_space.to_json(),
        "action_space": dataset.action_space.to_json(),
        "rendering": drawn or _as_text(dataset),
        "starts": [
            {"observation": _plain(start.observation), **valid}
            for start, valid in zip(starts, known, strict=True)
        ],
    }
    return World(data, limit)


def _starts(dataset: Dataset) -> list[Transition]:
    """Return the first transition of each episode."""
    _, rows = np.unique(dataset.columns["episodes"], return_index=True)
    return [dataset.row(row) for row in rows.tolist()]


class EnvironmentFacts(NamedTuple):
    """What an environment says of itself: its time limit, what is allowed at starts, how it draws.

    How it draws is plain data as `rendering.py` reads it, None where it does not.
    """

    limit: int | None
    allowed: list[list[int]]
    rendering: dict[str, Any] | None = None


def _asked(
    config: SearchConfig, starts: Sequence[Transition], seeds: Sequence[int]
) -> EnvironmentFacts:
    """Ask the environment, as far as it can be made here."""
    try:
        spec = environment(config.env)
        env = spec.make(**config.env_args)
    except CwmError:  # it is not installed here
        return EnvironmentFacts(None, [[] for _ in starts])
    with closing(env):
        limit = env.spec.max_episode_steps if env.spec else None
        allowed = [_allowed(spec, env, start, seeds) for start in starts]
        return EnvironmentFacts(limit, allowed, _rendering(spec, env, starts))


EXTRAS = {"classic_control": "classic-control", "toy_text": "toy-text", "mujoco": "mujoco"}
"""Extras of Gymnasium that its environments need to draw themselves, by their folder."""

MODES = ("rgb_array", "human", "ansi")


def _rendering(
    spec: EnvironmentSpec, env: gym.Env[Any, Any], starts: Sequence[Transition]
) -> dict[str, Any] | None:
    """Say how an environment, which can be made without `cwm`, is stood at observations to draw.

    None where nothing is known of that, or where it is not true of the first start.
    """
    made, own = env.spec, env.unwrapped.metadata
    modes = [mode for mode in MODES if mode in own.get("render_modes", ())]
    if made is None or not isinstance(made.entry_point, str) or not modes or not starts:
        return None
    layout = spec.layout(env) if spec.layout else None
    if layout is None or not (spec.restore and spec.restore(env, starts[0].observation)):
        return None
    package, *folders = made.entry_point.partition(":")[0].split(".")
    ours, needs = package == "gymnasium", f"install the package that has the module {package}"
    if ours:
        extra = next((EXTRAS[folder] for folder in folders if folder in EXTRAS), "all")
        needs = f"pip install 'gymnasium[{extra}]'"
    return {
        "modes": modes,
        "fps": own.get("render_fps"),
        "environment": made.id if ours else f"{package}:{made.id}",
        "arguments": json.loads(json.dumps(dict(made.kwargs))),
        "needs": needs,
        "layout": layout,
    }


def _as_text(dataset: Dataset) -> dict[str, Any]:
    """Say how observations are shown as text: boards are, and tables of objects."""
    space, told = dataset.observation_space, dataset.metadata.get("objects")
    found: dict[str, Any] = {"modes": [], "fps": None, "environment": None, "objects": None}
    if told is not None and space.kind == "dict":
        schema = ObjectSchema.from_json(told)
        if {"x", "y"} <= {*schema.names}:
            columns = {name: schema.column(name) for name in ("x", "y")}
            objects = {"table": OBJECTS, "classes": list(schema.classes), **columns}
            return found | {"modes": ["ansi"], "objects": objects}
    is_board = len(space.shape) == 2 and not space.is_float and not space.is_picture
    return found | {"modes": ["ansi"] if is_board else []}


def _allowed(
    spec: EnvironmentSpec, env: gym.Env[Any, Any], start: Transition, seeds: Sequence[int]
) -> list[int]:
    """Return the actions that are allowed at a start, none where that is not known."""
    if spec.valid_actions is None or start.episode >= len(seeds):
        return []
    observation, _ = env.reset(seed=seeds[start.episode])
    if key(observation) != key(start.observation):
        return []
    return [int(action) for action in spec.valid_actions(env.unwrapped) or ()]


def _characters(dataset: Dataset) -> str:
    """Return what texts are made of, as far as texts were recorded."""
    texts = [column for column in dataset.columns.values() if column.dtype.kind == "U"]
    return "".join(sorted({*LETTERS, *"".join(text for c in texts for text in c.tolist())}))


def _plain(value: Any) -> Any:
    """Return an observation as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


COLUMNS = ("accuracy", "exact", "floor", "normalised")
EXPLAINED = """
`accuracy` is the mean share of correct parts (observation, reward, terminated) of a transition, `exact` the share of transitions that are correct in every part. `floor` is the accuracy of predicting no change, the most common reward and no end; `normalised` is (accuracy - floor) / (1 - floor). The search used the training transitions only.
"""  # noqa: E501
_SKILL = (
    " `skill` measures the probabilities: 0 for the overall frequencies, 1 for the true"
    " environment."
)
_ASKED = {
    False: "Each transition was predicted from its recorded observation; over many steps, errors "
    "accumulate.",
    True: "Transitions were predicted in order, and `correct` got each recorded observation; "
    "without it, errors accumulate.",
}
"""How rows were asked, of programs without a memory and with one."""


class RunFindings(NamedTuple):
    """What a run came to: its nodes, the best of them, and what was written when it was over."""

    nodes: list[Node]
    best: Node
    is_over: bool
    scores: Mapping[str, Score]

    @property
    def completions(self) -> int:
        """How many of the nodes cost a completion."""
        return sum(node.asked for node in self.nodes)


def card(
    run: SearchRun, dataset: Dataset, names: Names, world: World, findings: RunFindings
) -> str:
    """Write the README of an exported environment."""
    limit = world.max_episode_steps
    return template("README.md").substitute(
        names._asdict(),
        environment=clean(run.config.env),
        author=_code(run.config.model)
        if run.config.model
        else "induction, without a language model",
        starts=len(world.data["starts"]),
        limit=f"It is truncated after {limit} steps." if limit else "No time limit is known.",
        valid=_VALID if dataset.has_valid_actions else "",
        rendering=_shown(world.data["rendering"]),
        contract=_CONTRACTS[abilities_of(findings.best.program).contract],
        scores=_scores(run, findings),
        gaps=_gaps(run),
        facts="\n".join(f"| {name} | {value} |" for name, value in _facts(run, dataset, findings)),
        version=__version__,
        mark=MARK,
    )


def _shown(rendering: Mapping[str, Any]) -> str:
    """Say how observations are shown."""
    if not rendering["modes"]:
        return "Rendering is not supported."
    if rendering["environment"] is None:
        return '`render_mode="ansi"` renders observations as text.'
    modes = ", ".join(f'`"{mode}"`' for mode in rendering["modes"])
    return (
        f"With a `render_mode` ({modes}), {_code(rendering['environment'])} renders the "
        f"predictions; it must be installed: `{rendering['needs']}`."
    )


_CONTRACTS = {
    "plain": "",
    "chance": " Outcomes are random; the seed determines them.",
    "memory": " The program has memory: it gets the initial observation, then uses its own "
    "predictions."
    " Pass recorded observations to its method `correct`.",
}
"""What is said of a program by its contract."""

_VALID = " `info` has the valid next actions: `valid_actions` and `action_mask`."


def _scores(run: SearchRun, findings: RunFindings) -> str:
    """Compare the scores on train and held-out rows, or say what is known so far."""
    if not findings.scores:
        so_far = f"Best score so far on training transitions: {share(findings.best.verdict.score)}."
        return (
            f"The search had not finished at the time of export. {so_far} Held-out "
            "transitions: not scored."
        )
    columns = [*COLUMNS, *(name for name in ("paper", "skill") if run.config.metric == name)]
    titles = {"train": "train", "test": "held-out"}
    lines = [
        f"| {' | '.join(['', *columns, 'transitions'])} |",
        "|---" + "|---:" * (len(columns) + 1) + "|",
    ]
    for part, score in findings.scores.items():
        shares = [share(getattr(score, name)) for name in columns]
        lines.append(f"| {' | '.join([titles[part], *shares, f'{score.transitions:,}'])} |")
    asked = _ASKED[abilities_of(findings.best.program).remembers]
    skill = _SKILL if "skill" in columns else ""
    return "\n".join(lines) + f"\n{EXPLAINED.rstrip()}{skill} {asked}"


def _gaps(run: SearchRun) -> str:
    """Say what the data do not show, where that was written down."""
    lines = [f"- {gap}" for gap in run.gaps()]
    return "\n".join(["## Not covered by the data", "", *lines, "", ""]) if lines else ""


def _facts(run: SearchRun, dataset: Dataset, findings: RunFindings) -> Iterator[tuple[str, str]]:
    """Yield how a program came to be."""
    config, header = run.config, run.header
    spent = total([node.usage for node in findings.nodes])
    versions = ", ".join(f"{name} {number}" for name, number in header.versions.items())
    train = len(dataset.train)
    yield "environment", _code(config.env)
    yield "environment arguments", _code(json.dumps(config.env_args)) if config.env_args else "none"
    yield "transitions", f"{train:,} train, {len(dataset) - train:,} held-out"
    yield "dataset digest", _code(config.dataset)
    yield "metric", config.metric
    yield "strategy", _code(config.strategy)
    yield (
        "model",
        _code(config.model) if config.model else f"none (backend {_code(config.backend)})",
    )
    yield "additional modules", ", ".join(map(_code, config.tools)) or "none"
    yield "seed", str(config.seed)
    yield "completions", f"{findings.completions}{'' if findings.is_over else ', so far'}"
    yield "tokens", tokens(spent.tokens)
    yield "cost", money(spent.cost)
    yield "started", clean(header.created)
    yield "versions", clean(versions)


def _code(text: str) -> str:
    """Write foreign text as code, which no table and no page takes for anything else."""
    return f"`{clean(text).replace('`', ' ').replace('|', '¦')}`"


BEST = "best.py"
NEEDED = ("gymnasium>=0.29", "numpy")

PARTS = ("environment.py", "rendering.py", "values.py", "vector.py")
"""Modules of a package that are the same in all."""


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
        "finished": findings.is_over,
        "max_episode_steps": world.max_episode_steps,
        "train": scores.get("train"),
        "test": scores.get("test"),
    }
    early = (
        f"the search has not finished: this is the best of {findings.completions} completions so "
        "far"
    )
    return Export(
        files={
            "README.md": card(run, dataset, names, world, findings).encode(),
            f"{names.module}/program.py": program,
            **_frame(run, names, world),
        },
        paths={"program": f"{names.module}/program.py"},
        facts=facts,
        use=("pip install $folder", f'env = gymnasium.make("{names.module}:{names.id}")'),
        notes=() if findings.is_over else (early,),
    )


def _findings(run: SearchRun, program: bytes) -> RunFindings:
    """Read what a run came to; a result of fewer completions than there are now is out of date."""
    nodes = list(run.nodes())
    same = [node for node in nodes if node.program.encode("utf-8", "replace") == program]
    if not same:
        raise CwmError(
            f"{run.folder / BEST} matches no node of the run: continue the run to restore it"
        )
    best = max(same, key=lambda node: node.verdict.score)
    if best.verdict.is_bug or not program.strip():
        raise CwmError(f"{run.place} has no program that runs yet: continue it first")
    result = run.result()
    is_over = result is not None and result.get("completions") == sum(node.asked for node in nodes)
    known = run.scores() if is_over else {}
    return RunFindings(nodes, best, is_over, {n: s for n, s in known.items() if n != "unseen"})


def _frame(run: SearchRun, names: Names, world: World) -> dict[str, bytes]:
    """Return what makes a program a package."""
    templates = files("cwm_cli.export") / "templates"
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
        **{f"{names.module}/{part}": (templates / part).read_bytes() for part in PARTS},
        f"{names.module}/world.json": (json.dumps(world.data) + "\n").encode(),
    }


def _distributions(tools: tuple[str, ...]) -> list[str]:
    """Name the packages that modules come from, or the modules where those are not installed."""
    tops = {tool.partition(".")[0] for tool in tools} - sys.stdlib_module_names
    owners = packages_distributions() if tops else {}
    names = {top: owners.get(top, [top]) for top in tops}
    return sorted(top if top in owning else owning[0] for top, owning in names.items())


def export_of(folder: Path | str) -> Export:
    """Make an export of a run; one of another kind than a search says what is exported of it."""
    folder = placed(folder)
    kind = kind_of(folder)
    if kind != SearchRun.kind:
        made: Export | None = load(folder).export()
        if made is not None:
            return made
        parts = (f", such as {part}" for part in run_folders(folder) if part != folder)
        words = f"{named(folder)} is a run of kind {kind!r}: export a search"
        raise CwmError(f"{words}{next(parts, '')}")
    if not (folder / DATASET).exists():
        above = folder.absolute().parent.parent
        raise CwmError(f"{named(folder)} is part of a larger run: export {named(above)}")
    return package_of(SearchRun.load(folder))
