"""The export of a search as a Python package with a Gymnasium environment.

Besides the best program, the package contains its spaces, starting observations, limits and seeds
(`World`), and a README with its scores and its origin. `export_of` chooses the export of a run
folder.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cwm_cli._version import __version__, distributions_of
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import OBJECTS, ObjectSchema
from cwm_cli.data.spaces import json_value
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score
from cwm_cli.export.publishing import MARK, Export, template
from cwm_cli.planning.model import key
from cwm_cli.registry import environment
from cwm_cli.runs.listing import load, run_folders
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.storage import named, placed
from cwm_cli.runs.store import DATASET, kind_of
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.job import abilities_of
from cwm_cli.search.contracts import Node, total
from cwm_cli.text import clean, money, share, tokens
from cwm_cli.worlds.rewarding import RewardExpression
from cwm_cli.worlds.translating import TranslatedProgram, translated

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.runs.searches import SearchConfig
    from cwm_cli.translation.source import SourceForm

NAMESPACE = "WorldModel"


class Names(NamedTuple):
    """The id of an exported environment, and the name of its module and distribution."""

    id: str
    module: str


def make_names(environment: str) -> Names:
    """Return the names of a world model, without the module that registers the environment."""
    bare = environment.rpartition(":")[2]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", bare).strip("-.") or "Environment"
    words = re.sub(r"[^a-z0-9]+", "_", bare.lower()).strip("_")
    first = "environment" if words[:1].isdigit() else ""
    module = "_".join(filter(None, (first, words, "world_model")))
    return Names(f"{NAMESPACE}/{name}", module)


# The default characters of Gymnasium's `Text` space.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class World(NamedTuple):
    """The contents of `world.json`, and the time limit, or None if it is unknown."""

    data: dict[str, Any]
    max_episode_steps: int | None


def gather_world(
    config: SearchConfig,
    dataset: Dataset,
    program: str,
    modules: Mapping[SourceForm, str] = MappingProxyType({}),
) -> World:
    """Return the data of an exported environment, from the dataset and the true environment.

    The true environment adds its time limit, valid actions and rendering, if it is installed.
    """
    _, first_rows = np.unique(dataset.columns["episodes"], return_index=True)
    starts = [dataset.row(row) for row in first_rows.tolist()]
    limit, allowed, rendering = _inspect_environment(
        config, starts, dataset.metadata.get("reset_seeds", [])
    )
    known = [{"valid_actions": actions} if actions else {} for actions in allowed]
    texts = [column for column in dataset.columns.values() if column.dtype.kind == "U"]
    recorded = "".join(text for column in texts for text in column.tolist())
    data = {
        "seed": config.seed,
        "draws": "random" in program,
        "abilities": abilities_of(program)._asdict(),
        "names_actions": dataset.has_valid_actions,
        "single": modules.get("python"),
        "batched": modules.get("numpy"),
        "jax": modules.get("jax"),
        "max_episode_steps": limit,
        "characters": "".join(sorted({*LETTERS, *recorded})),
        "observation_space": dataset.observation_space.to_json(),
        "action_space": dataset.action_space.to_json(),
        "rendering": rendering or _text_rendering(dataset),
        "starts": [
            {"observation": json_value(start.observation), **valid}
            for start, valid in zip(starts, known, strict=True)
        ],
    }
    return World(data, limit)


class EnvironmentFacts(NamedTuple):
    """The time limit of an environment, the valid actions at each start, and its rendering.

    The rendering is plain data that `rendering.py` reads, or None if the environment has none.
    """

    limit: int | None
    allowed: list[list[int]]
    rendering: dict[str, Any] | None = None


def _inspect_environment(
    config: SearchConfig, starts: Sequence[Transition], seeds: Sequence[int]
) -> EnvironmentFacts:
    try:
        spec = environment(config.env)
        env = spec.make(**config.env_args)
    except CwmError:  # it is not installed here
        return EnvironmentFacts(None, [[] for _ in starts])
    with closing(env):
        limit = env.spec.max_episode_steps if env.spec else None
        allowed = [_start_actions(spec, env, start, seeds) for start in starts]
        return EnvironmentFacts(limit, allowed, _rendering(spec, env, starts))


# Extras of Gymnasium that rendering needs, by the folder of the environment.
EXTRAS = {"classic_control": "classic-control", "toy_text": "toy-text", "mujoco": "mujoco"}

MODES = ("rgb_array", "human", "ansi")


def _rendering(
    spec: EnvironmentSpec, env: gym.Env[Any, Any], starts: Sequence[Transition]
) -> dict[str, Any] | None:
    """Return how to render observations by an environment that does not need `cwm`.

    None if its state layout is unknown, or if restoring the first start fails.
    """
    made, own = env.spec, env.unwrapped.metadata
    modes = [mode for mode in MODES if mode in own.get("render_modes", ())]
    if made is None or not isinstance(made.entry_point, str) or not modes or not starts:
        return None
    layout = spec.layout(env) if spec.layout else None
    if layout is None or not (spec.restore and spec.restore(env, starts[0].observation)):
        return None
    # Environments of Gymnasium are found by id alone; others need their package in front.
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


def _text_rendering(dataset: Dataset) -> dict[str, Any]:
    """Return how to show observations as text: boards and tables of objects have a text form."""
    space, classes = dataset.observation_space, dataset.metadata.get("objects")
    found: dict[str, Any] = {"modes": [], "fps": None, "environment": None, "objects": None}
    if classes is not None and space.kind == "dict":
        schema = ObjectSchema.from_json(classes)
        if {"x", "y"} <= {*schema.names}:
            columns = {name: schema.column(name) for name in ("x", "y")}
            objects = {"table": OBJECTS, "classes": list(schema.classes), **columns}
            return found | {"modes": ["ansi"], "objects": objects}
    is_board = len(space.shape) == 2 and not space.is_float and not space.is_picture
    return found | {"modes": ["ansi"] if is_board else []}


def _start_actions(
    spec: EnvironmentSpec, env: gym.Env[Any, Any], start: Transition, seeds: Sequence[int]
) -> list[int]:
    """Return the valid actions at a start, or an empty list if they are unknown."""
    if spec.valid_actions is None or start.episode >= len(seeds):
        return []
    observation, _ = env.reset(seed=seeds[start.episode])
    if key(observation) != key(start.observation):
        return []
    return [int(action) for action in spec.valid_actions(env.unwrapped) or ()]


COLUMNS = ("accuracy", "exact", "floor", "normalised")
SCORE_NOTE = """
`accuracy` is the mean share of correct parts (observation, reward, terminated) of a transition, `exact` the share of transitions that are correct in every part. `floor` is the accuracy of predicting no change, the most common reward and no end; `normalised` is (accuracy - floor) / (1 - floor). The search used the training transitions only.
"""  # noqa: E501
_SKILL = (
    " `skill` measures the probabilities: 0 for the overall frequencies, 1 for the true"
    " environment."
)
# How transitions were predicted, by whether the program has memory.
_PROTOCOLS = {
    False: "Each transition was predicted from its recorded observation; over many steps, errors "
    "accumulate.",
    True: "Transitions were predicted in order, and `correct` got each recorded observation; "
    "without it, errors accumulate.",
}


class RunFindings(NamedTuple):
    """The nodes of a run, its best node, whether the run is finished, and its scores."""

    nodes: list[Node]
    best: Node
    is_over: bool
    scores: Mapping[str, Score]

    @property
    def completions(self) -> int:
        """The number of completions."""
        return sum(node.asked for node in self.nodes)


def card(
    run: SearchRun,
    dataset: Dataset,
    world: World,
    findings: RunFindings,
    modules: Mapping[SourceForm, str],
    reward_expression: str | None = None,
) -> str:
    """Return the README of an exported environment; `modules` compute its steps."""
    limit = world.max_episode_steps
    gaps = "".join(f"- {gap}\n" for gap in run.gaps())
    return template("README.md").substitute(
        make_names(run.config.env)._asdict(),
        environment=clean(run.config.env),
        author=_as_code(run.config.model)
        if run.config.model
        else "induction, without a language model",
        forms=_describe_forms(modules),
        starts=len(world.data["starts"]),
        limit=f"It is truncated after {limit} steps." if limit else "No time limit is known.",
        valid=_VALID if dataset.has_valid_actions else "",
        rendering=_describe_rendering(world.data["rendering"]),
        contract=_CONTRACTS[abilities_of(findings.best.program).contract],
        reward=f" The reward is {_as_code(reward_expression)}." if reward_expression else "",
        scores=_score_table(run, findings),
        gaps=f"## Not covered by the data\n\n{gaps}\n" if gaps else "",
        facts="\n".join(f"| {name} | {value} |" for name, value in _facts(run, dataset, findings)),
        version=__version__,
        mark=MARK,
    )


def _describe_forms(modules: Mapping[SourceForm, str]) -> str:
    if "numpy" not in modules:
        return ""
    text = (
        f"\n`{modules['python']}.py` (plain numbers) and `{modules['numpy']}.py` (NumPy) compute "
        "the steps; `program.py` computes the rare steps that they cannot."
    )
    if "jax" in modules:
        text += " `jax_environment.py` has the functions `reset` and `step` for JAX."
    return text


def _describe_rendering(rendering: Mapping[str, Any]) -> str:
    if not rendering["modes"]:
        return "Rendering is not supported."
    if rendering["environment"] is None:
        return '`render_mode="ansi"` renders observations as text.'
    modes = ", ".join(f'`"{mode}"`' for mode in rendering["modes"])
    return (
        f"With a `render_mode` ({modes}), {_as_code(rendering['environment'])} renders the "
        f"predictions; it must be installed: `{rendering['needs']}`."
    )


_CONTRACTS = {
    "plain": "",
    "game": " It is a game of two players: each step is one move, and the player who moves "
    "gets the reward.",
    "chance": " Outcomes are random; the seed determines them.",
    "memory": " The program has memory: it gets the initial observation, then uses its own "
    "predictions."
    " Pass recorded observations to its method `correct`.",
}

_VALID = " `info` has the valid next actions: `valid_actions` and `action_mask`."


def _score_table(run: SearchRun, findings: RunFindings) -> str:
    """Return a table of the scores on train and held-out rows, or the best score so far."""
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
    protocol = _PROTOCOLS[abilities_of(findings.best.program).remembers]
    skill = _SKILL if "skill" in columns else ""
    return "\n".join(lines) + f"\n{SCORE_NOTE.rstrip()}{skill} {protocol}"


def _facts(run: SearchRun, dataset: Dataset, findings: RunFindings) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table about the origin of a program."""
    config, header = run.config, run.header
    spent = total([node.usage for node in findings.nodes])
    versions = ", ".join(f"{name} {number}" for name, number in header.versions.items())
    train = len(dataset.train)
    yield "environment", _as_code(config.env)
    yield (
        "environment arguments",
        _as_code(json.dumps(config.env_args)) if config.env_args else "none",
    )
    yield "transitions", f"{train:,} train, {len(dataset) - train:,} held-out"
    yield "dataset digest", _as_code(config.dataset)
    yield "metric", config.metric
    yield "strategy", _as_code(config.strategy)
    yield (
        "model",
        _as_code(config.model) if config.model else f"none (backend {_as_code(config.backend)})",
    )
    yield "additional modules", ", ".join(map(_as_code, config.tools)) or "none"
    yield "seed", str(config.seed)
    yield "completions", f"{findings.completions}{'' if findings.is_over else ', so far'}"
    yield "tokens", tokens(spent.tokens)
    yield "cost", money(spent.cost)
    yield "started", clean(header.created)
    yield "versions", clean(versions)


def _as_code(text: str) -> str:
    """Return external text as Markdown code that breaks no table or page."""
    return f"`{clean(text).replace('`', ' ').replace('|', '¦')}`"


BEST = "best.py"
NEEDED = ("gymnasium>=0.29", "numpy")

PARTS = ("environment.py", "rendering.py", "values.py", "vector.py")
"""Modules that are the same in all packages."""

ExportForm = Literal["auto", "numpy", "jax", "python"]
"""How an exported package computes steps: by the program itself (`python`), or by a translation
into plain numbers and NumPy (`numpy`), and also into JAX (`jax`). `auto` is `numpy` if possible."""

_MODULES: dict[SourceForm, str] = {"python": "single", "numpy": "batched", "jax": "jax_step"}
"""Modules that compute steps, by form."""

_OUTCOME_MODULES: dict[SourceForm, str] = {
    "python": "outcomes_single",
    "numpy": "outcomes_batched",
    "jax": "outcomes_jax",
}
"""The same for programs that list random outcomes; these modules read `outcomes.json`."""


def build_package(
    run: SearchRun,
    reward_expression: str | None = None,
    form: ExportForm = "auto",
    *,
    accepted: Sequence[str] = (),
) -> Export:
    """Return a package of the best program of a run, which may be unfinished.

    Args:
        run: The run.
        reward_expression: Replaces the reward of the program (see `RewardExpression`).
        form: How the package computes steps.
        accepted: Gaps of the protection that are accepted while the program is translated.

    Raises:
        CwmError: The program cannot be translated into the given form.
    """
    text, program = run.best_program(), (run.folder / BEST).read_bytes()
    findings = _read_findings(run, program)
    names, dataset = make_names(run.config.env), run.dataset()
    if reward_expression is not None:
        text = _with_reward(run.config, text, reward_expression, dataset)
        program = text.encode()
    found = _translate(run, text, dataset, form, accepted)
    modules = {name: _MODULES[name] for name in found.texts}
    if found.outcomes:
        modules = {name: _OUTCOME_MODULES[name] for name in _wanted_forms(form)}
    world = gather_world(run.config, dataset, text, modules)
    readme = card(run, dataset, world, findings, modules, reward_expression)
    forms: list[str] = [name for name in modules if name != "python"] or ["python"]
    scores = {part: score.model_dump() for part, score in findings.scores.items()}
    facts = {
        "environment": run.config.env,
        **names._asdict(),
        "finished": findings.is_over,
        "max_episode_steps": world.max_episode_steps,
        "forms": forms,
        "train": scores.get("train"),
        "test": scores.get("test"),
    }
    early = (
        f"the search has not finished: this is the best of {findings.completions} completions so "
        "far"
    )
    return Export(
        files={
            "README.md": readme.encode(),
            f"{names.module}/program.py": program,
            **{
                f"{names.module}/{_MODULES[name]}.py": source.encode()
                for name, source in found.texts.items()
            },
            **_package_files(run, names, world, modules),
            **(
                {f"{names.module}/outcomes.json": found.outcomes.encode()} if found.outcomes else {}
            ),
        },
        paths={"program": f"{names.module}/program.py"},
        facts=facts,
        use=("pip install $folder", f'env = gymnasium.make("{names.module}:{names.id}")'),
        notes=(
            *(() if findings.is_over else (early,)),
            *((f"the package runs the program itself: {found.reason}",) if found.reason else ()),
        ),
    )


def _wanted_forms(form: ExportForm) -> list[SourceForm]:
    return ["python", "numpy", "jax"] if form == "jax" else ["python", "numpy"]


def _translate(
    run: SearchRun, program: str, dataset: Dataset, form: ExportForm, accepted: Sequence[str]
) -> TranslatedProgram:
    """Return the program in the forms that a package needs."""
    if form == "python":
        return TranslatedProgram({})
    if form == "jax" and find_spec("jax") is None:
        raise CwmError("the form jax needs JAX: pip install 'cwm-cli[jax]'")
    try:
        with Sandbox(Limits(), tools=run.config.tools, accepted=accepted) as sandbox:
            found = translated(sandbox, program, dataset, _wanted_forms(form), seed=run.config.seed)
    except CwmError as error:  # an open gap of the protection, or a tool that is not installed
        found = TranslatedProgram({}, str(error))
    if found.reason and form != "auto":
        raise CwmError(f"the program has no form {form}: {found.reason}")
    return found


def _with_reward(config: SearchConfig, program: str, text: str, dataset: Dataset) -> str:
    """Return a program with the rewards of an expression over its columns."""
    spec = environment(config.env)
    with closing(spec.make(**config.env_args)) as env:
        reward = RewardExpression.parse(text, spec, env)
    reward.rewarded(dataset)  # refuse an expression that fails on recorded observations
    return reward.extended(program, valid=dataset.has_valid_actions)


def _read_findings(run: SearchRun, program: bytes) -> RunFindings:
    """Read the nodes and scores of a run.

    Scores are outdated, and left out, if the run has more completions than its result.
    """
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


def _package_files(
    run: SearchRun, names: Names, world: World, modules: Mapping[SourceForm, str]
) -> dict[str, bytes]:
    """Return the files of a package besides the program, its translations and the README."""
    templates = files("cwm_cli.export") / "templates"
    tops = {tool.partition(".")[0] for tool in run.config.tools} - sys.stdlib_module_names
    # A module that is not installed gives its own name, as does one with a distribution like it.
    owning = {top: distributions_of(top) or (top,) for top in tops}
    tools = sorted(top if top in some else some[0] for top, some in owning.items())
    about = {
        **names._asdict(),
        "environment": json.dumps(clean(run.config.env), ensure_ascii=False)[1:-1],
        "max_episode_steps": world.max_episode_steps,
        "vector_class": "batched_vector:BatchedWorldModelEnv"
        if "numpy" in modules
        else "vector:WorldModelVectorEnv",
        "dependencies": json.dumps([*NEEDED, *tools]),
    }
    added = {"numpy": "batched_vector.py", "jax": "jax_environment.py"}
    parts = [*PARTS, *(part for form, part in added.items() if form in modules)]
    parts += [f"{name}.py" for name in modules.values() if name in _OUTCOME_MODULES.values()]
    init, project = (template(n).substitute(about) for n in ("__init__.py", "pyproject.toml"))
    return {
        "pyproject.toml": project.encode(),
        f"{names.module}/__init__.py": init.encode(),
        **{f"{names.module}/{part}": (templates / part).read_bytes() for part in parts},
        f"{names.module}/world.json": (json.dumps(world.data) + "\n").encode(),
    }


def export_of(
    folder: Path | str,
    reward_expression: str | None = None,
    form: ExportForm = "auto",
    *,
    accepted: Sequence[str] = (),
) -> Export:
    """Return the export of a run folder; other kinds of run define their own export.

    Args:
        folder: The run folder.
        reward_expression: Reward of an exported program instead of its own.
        form: How an exported package computes steps.
        accepted: Gaps of the protection that are accepted while the program is translated.

    Raises:
        CwmError: The run cannot be exported, is part of a larger run, or has no program yet.
    """
    folder = placed(folder)
    kind = kind_of(folder)
    if kind != SearchRun.kind and reward_expression is not None:
        raise CwmError(f"{named(folder)} is a run of kind {kind!r}: leave out --reward-expression")
    if kind != SearchRun.kind and form in ("numpy", "jax"):
        raise CwmError(f"{named(folder)} is a run of kind {kind!r}: leave out --form")
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
    return build_package(SearchRun.load(folder), reward_expression, form, accepted=accepted)
