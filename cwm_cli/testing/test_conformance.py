"""One test for each guarantee of an extension point, for every installed implementation."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import is_dataclass, replace
from inspect import Parameter, getdoc, isfunction, signature
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from cwm_cli import registry
from cwm_cli.bench.executor import Command
from cwm_cli.cli import shared
from cwm_cli.commands.data import export_transitions
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.hookspecs import Kind
from cwm_cli.planning import Decider, Moment
from cwm_cli.planning.model import Counter, Model, Step
from cwm_cli.registry import Owner, find, iterate_parts
from cwm_cli.runs.observer import SILENT
from cwm_cli.runs.storage import HEADER, BusyError
from cwm_cli.runs.store import RunHeader
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    ROOT,
    START,
    Backend,
    Completion,
    Message,
    Move,
    Node,
    Problem,
    Refinement,
    RefinementTask,
    Request,
    ScoreRequest,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.testing.conftest import Material
from cwm_cli.worlds.model import Predictions

BUDGET = 40
"""Completions of a search: enough for a tree with every kind of move."""

CLASSES: tuple[Kind, ...] = tuple(
    kind for kind, point in registry.extension_points().items() if point.base
)


def every(kind: Kind) -> pytest.MarkDecorator:
    """Parametrise a test over all implementations of a kind, named by plugin and name."""
    given = [
        pytest.param(f"{plugin.name}:{name}", id=f"{plugin.package.split()[0]}-{name}")
        for plugin, entries in iterate_parts(kind)
        for name in entries
        if registry.without_alias(entries, name) == name
    ]
    return pytest.mark.parametrize("name", given)


def make(kind: Kind, name: str, material: Material) -> Any:
    """Return the example of an implementation, or an instance made without arguments."""
    example = registry.conformance_example(kind, name)
    try:
        return example(material) if example else find(kind, name)()
    except TypeError as error:
        pytest.fail(f"{name} cannot be made ({error}): offer an example by cwm_test_examples")


@contextmanager
def skip_if_unusable(remedy: str = "") -> Iterator[None]:
    """Skip the test after a `CwmError` of one line that contains the remedy."""
    try:
        yield
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        assert remedy in str(error), f"without {remedy} in its error it has to work"
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, f"{plugin.name}:{name}", id=f"{plugin.package.split()[0]}-{kind}-{name}")
        for kind in CLASSES
        for plugin, entries in iterate_parts(kind)
        for name in entries
    ],
)
def test_class_matches_its_base_class_and_explains_its_options(kind: Kind, name: str) -> None:
    factory = find(kind, name)
    wrong = [] if getdoc(factory) else ["has no docstring"]
    has_options = registry.extension_points()[kind].has_options
    if has_options and not is_dataclass(factory):
        wrong.append("is no dataclass")
    options = Owner("it", factory).describe_options() if has_options else []
    wrong += [f"does not say what {option.name} means" for option in options if not option.meaning]
    defaults = {option.name: option.default for option in options if option.default is not None}
    try:
        registry.read_options(defaults, [Owner("it", factory)])
    except CwmError as error:
        wrong.append(f"refuses its own defaults: {error}")
    wrong += _wrong_signatures(factory, registry.base_of(kind))
    assert not wrong, f"{name} {', '.join(wrong)}"


def _wrong_signatures(factory: Any, base: type | None) -> Iterator[str]:
    """Yield the methods that do not accept the arguments of the base class."""
    if base is None or not isinstance(factory, type):
        return
    for name, promised in vars(base).items():
        own = getattr(factory, name, None)
        if not isfunction(promised) or name.startswith("_") or not isfunction(own):
            continue
        parameters = [*signature(promised).parameters.values()]
        keywords = [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
        positional = [None] * sum(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        try:
            signature(own).bind(*positional, **dict.fromkeys(keywords))
        except TypeError:
            words = ", ".join(p.name for p in parameters)
            given = ", ".join(signature(own).parameters)
            yield f"has {name}({given}), which is called with ({words})"


def returned(value: Any, kind: type, what: str) -> Any:
    """Assert the type of a returned value."""
    assert isinstance(value, kind), f"{what} has to return a {kind.__name__}, not {value!r:.80}"
    return value


class Lengths(Problem):
    """A problem that asks for a text of a hundred characters; some lengths are bugs."""

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return equal messages for equal moves."""
        return (Message(role="user", content=f"{move.action} {move.parent} {move.program}"),)

    def judge(self, candidate: str) -> Verdict:
        """Score by length."""
        size = len(candidate)
        if size % 5 == 0:
            return Verdict(score=0.0, failure=Failure(kind="crash", message="a bug", line=1))
        failure = Failure(kind="mismatch", message="too short")
        return Verdict(score=min(size / 100, 0.99), failure=failure)


class LengthWriter(Backend):
    """A backend whose programs have lengths that depend on the seed."""

    def complete(self, request: Request) -> Completion:
        """Return a program that starts with the prefix of the move."""
        lines = "\n".join(f"x = {digit}" for digit in str(request.seed))
        text = f"```python\n{request.move.prefix}{lines}\n```"
        return Completion(text, Usage(1, 1), log_probability=-1.0)


def run_search(name: str, *, seed: int, parallel: int = 1, known: tuple[Node, ...] = ()) -> Search:
    search = Search(
        Lengths(), find("strategy", name)(), LengthWriter(), seed=seed, parallel=parallel
    )
    search.resume(known)
    for _ in search.run(BUDGET):
        pass
    return search


@every("strategy")
def test_strategy_selects_its_own_moves_from_existing_nodes(name: str) -> None:
    returned(find("strategy", name)().select(np.random.default_rng(0), ()), Move, "select")
    for parallel in (1, 3):
        search = run_search(name, seed=1, parallel=parallel)
        assert len(search.nodes) == BUDGET
        for node in search.nodes:
            assert node.action in search.strategy.moves
            assert node.parent == ROOT or node.parent < BUDGET
            assert node.action == GENERATE or node.parent != ROOT
            assert isinstance(search.strategy.state(node.id), str)


@every("strategy")
def test_strategy_is_deterministic_and_resumes_from_any_node(name: str) -> None:
    whole = run_search(name, seed=2)
    assert run_search(name, seed=2).nodes == whole.nodes
    for cut in (1, BUDGET // 2, BUDGET - 1):
        resumed = run_search(name, seed=2, known=tuple(whole.nodes[:cut]))
        assert resumed.nodes == whole.nodes, f"the tree differs after resuming from {cut} nodes"


@every("strategy")
def test_strategy_accepts_programs_without_a_completion(name: str) -> None:
    verdicts = [Lengths().judge("x" * size) for size in (30, 60)]
    known = tuple(
        Node(n, -1, n - 1, action, "x" * (30 + 30 * n), verdict, "", Usage(), asked=False)
        for n, (action, verdict) in enumerate(zip((START, "calibrate"), verdicts, strict=True))
    )
    search = run_search(name, seed=3, known=known)
    assert [node.asked for node in search.nodes] == [False, False, *[True] * BUDGET]


@every("backend")
def test_backend_repeats_its_completion_or_reports_a_missing_part(
    name: str, material: Material
) -> None:
    factory, example = find("backend", name), registry.conformance_example("backend", name)
    try:
        backend = example(material) if example else factory(model="")
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    if factory.needs_model and not example:
        return  # without a model it fails only in `complete`
    problem = make("problem", "core:world-model", material)
    move = Move(GENERATE)
    request = Request(problem.messages(move), 7, move, problem)
    worst = backend.worst_cost(request)
    assert worst is None or worst >= 0
    try:
        first, again = backend.complete(request), backend.complete(request)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert returned(first, Completion, "complete").text == again.text
    assert isinstance(first.text, str)
    assert first.usage.tokens >= 0


@every("backend")
def test_backend_scores_texts_or_raises_an_error(name: str, material: Material) -> None:
    factory, example = find("backend", name), registry.conformance_example("backend", name)
    try:
        backend = example(material) if example else factory(model="")
    except CwmError:
        return
    messages = (Message(role="user", content="What is one and one?"),)
    if not backend.can_score:
        with pytest.raises(CwmError, match="log-probabilities"):
            backend.score([ScoreRequest(messages, "two")])
        return
    if not backend.reads_messages:
        return  # it scores only questions that it knows
    requests = [ScoreRequest(messages, text) for text in ("two", "one and one")]
    scores = [np.asarray(values) for values in backend.score(requests)]
    assert [values.ndim for values in scores] == [1, 1]
    assert all(len(values) > 0 and (values <= 0).all() for values in scores)


@every("problem")
def test_problem_prompts_for_each_move_and_judges_any_candidate(
    name: str, material: Material
) -> None:
    problem = make("problem", name, material)
    candidate = problem.read("Here it is:\n```python\nx = 1\n```\n", Move(GENERATE))
    assert isinstance(candidate, str)
    bad = [problem.judge(text) for text in ("", candidate, "\0", "raise SystemExit")]
    assert all(0 <= verdict.score < 1 and verdict.failure is not None for verdict in bad)
    assert problem.confirm(candidate, bad[1]).rank == bad[1].rank
    for action in problem.moves:
        move = Move(action, 0, candidate, bad[1]) if action != GENERATE else Move(action)
        messages = problem.messages(move)
        assert messages
        assert all(message.content.strip() for message in messages)
        assert messages == problem.messages(move) == problem.shorter(move, 10**6)
        short = problem.shorter(move, 1)
        assert sum(len(m.content) for m in short) <= sum(len(m.content) for m in messages)
    node = Node(0, 0, ROOT, GENERATE, candidate, bad[1], "", Usage())
    problem.keep(material.folder, node)
    assert (material.folder / problem.file).stat().st_size > 0


class UnknownProblem(Problem):
    """A problem that no refiner knows."""

    def judge(self, candidate: str) -> Verdict:
        """Accept every candidate."""
        return Verdict(score=0.5)


NEARLY_RIGHT = """
import math


class Environment:
    def set_state(self, observation):
        self.state = [float(value) for value in observation]

    def step(self, action):
        x, v, angle, spin = self.state
        force = 9.0 if action == 1 else -9.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist]
        return self.state, 1.0, bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2)
"""
"""CartPole with a force that is too small."""


@pytest.mark.slow
@every("refiner")
def test_refiner_is_deterministic_and_ignores_hidden_rows(name: str, material: Material) -> None:
    problem = make("problem", "core:world-model", material)
    runs, raises = NEARLY_RIGHT, NEARLY_RIGHT.replace("import math", "")

    def task(of: Problem, *programs: str) -> RefinementTask:
        first, *others = (
            Node(n, n, ROOT, GENERATE, program, of.judge(program), "", Usage())
            for n, program in enumerate(programs)
        )
        return RefinementTask(of, first, others, seed=5)

    def refine(task: RefinementTask) -> Refinement | None:
        found: Refinement | None = find("refiner", name)().refine(task)
        assert found is None or isinstance(found.candidate + found.findings, str)
        return found

    if not find("refiner", name).of_solved:  # it uses the text of the program only
        assert refine(task(UnknownProblem(), runs)) is None
    for odd in (raises, "", "class Environment: pass", "x = (", "\0"):
        refine(task(problem, odd, runs))
    found = refine(task(problem, runs, raises))
    assert refine(task(problem, runs, raises)) == found
    assert refine(task(_with_other_hidden_rows(problem), runs, raises)) == found, (
        "it uses hidden rows"
    )


def _with_other_hidden_rows(problem: Any) -> Any:
    """Return a problem with other results in its hidden rows."""
    dataset, fitted = problem.dataset, problem.dataset.fitted
    columns = dict(dataset.columns)
    for column in ("rewards", "next_observations"):
        columns[column] = columns[column].copy()
        # Any change will do: a refiner that reads these rows then returns something else.
        columns[column][~fitted] += 1
    return replace(problem, dataset=replace(dataset, columns=columns))


@every("metric")
def test_metric_is_highest_for_recorded_rows(name: str, material: Material) -> None:
    rows = material.dataset.train
    metric = find("metric", name).of(rows)
    right = {
        column: values
        for column, values in rows.columns.items()
        if column.startswith(("next_observations", "rewards", "terminations", "valid_actions"))
    }
    # Rolled rows keep the distribution, so a metric of marginals alone would not notice them.
    wrong = {column: np.roll(values, 7, axis=0) for column, values in right.items()}
    best, worse = metric.score(right, rows), metric.score(wrong, rows)
    failed = metric.failed(rows)
    assert failed.value <= worse.value < best.value
    assert 0 <= metric.floor(rows) <= best.value
    assert json.dumps(best.model_dump())


class Walk(Model):
    """A walk along ten places to a reward at the end."""

    def __init__(self, kind: str) -> None:
        from gymnasium import spaces

        box = spaces.Box(-1, 1, (1,), np.float64)
        self.action_space = space_of(spaces.Discrete(2) if kind == "discrete" else box, "actions")
        self.deterministic = True
        self.counter: Counter = [0]
        self._place = 0.0

    def stand(self, state: Any) -> None:
        """Go to a place."""
        self._place = float(np.asarray(state).ravel()[0])

    def here(self) -> Any:
        """Return the place."""
        return np.array([self._place])

    def step(self, action: Any) -> Step:
        """Move in one of the two directions."""
        self.counter[0] += 1
        number = float(np.asarray(action).ravel()[0])
        self._place += (2 * number - 1) if self.action_space.kind == "discrete" else number
        return Step(self.here(), self._place, self._place >= 10, None)


@every("planner")
def test_planner_is_deterministic_and_returns_valid_actions(name: str) -> None:
    from cwm_cli.planning import Unsuited

    planner = find("planner", name)
    served = 0
    for kind in ("discrete", "box"):
        model = Walk(kind)
        if not planner.serves(model.action_space):
            continue
        served += 1
        moments = [Moment(episode, 0, np.array([float(episode)]), 6) for episode in range(2)]
        try:
            plans = Decider([planner()], model, seed=3).plan(moments)
        except Unsuited as reason:
            assert str(reason).strip()
            continue
        returned(plans, list, "plan")
        for plan in plans:
            returned(plan, list, "plan, for each situation,")
        again = Decider([planner()], Walk(kind), seed=3).plan(moments)
        low, high = model.action_space.low, model.action_space.high
        for plan, repeated in zip(plans, again, strict=True):
            assert 1 <= len(plan) <= 6
            np.testing.assert_array_equal(np.asarray(plan), np.asarray(repeated))
            for action in plan:
                values = np.ravel(action)
                assert (values >= np.asarray(low)).all()
                assert (values <= np.asarray(high)).all()
    assert served, f"{name} serves no kind of action; it needs {planner.NEEDS}"


@every("policy")
def test_policy_records_equal_rows_for_equal_seeds(name: str, material: Material) -> None:
    if find("policy", name).needs_text:
        pytest.skip("it needs an environment in words")

    def rows(seed: int) -> Dataset:
        return record(
            material.spec, policy=name, episodes=2, test_episodes=1, max_steps=8, seed=seed
        )

    first = rows(5)
    assert first.digest == rows(5).digest
    assert len(first.train) > 0
    assert len(first.test) > 0


@every("world model")
def test_world_model_predictions_do_not_depend_on_row_order(name: str, material: Material) -> None:
    model = make("world model", name, material)
    rows = material.dataset.test
    found = returned(model.predict(rows, seed=1, draws=2), Predictions, "predict").checked(rows)
    assert found.failure is None
    given = name.partition(":")[2]
    assert model.kind == given, f"its kind is {model.kind!r}, and the hook calls it {given!r}"
    assert model.describe()
    order = np.argsort(rows.columns["rewards"] + np.arange(len(rows))[::-1], kind="stable")
    turned = model.predict(rows[order], seed=1, draws=2)
    if found.shape == "certain":
        for column, values in found.columns.items():
            np.testing.assert_allclose(values[order], turned.columns[column], rtol=1e-9, atol=1e-9)


@every("world model")
def test_world_model_confirms_its_predictions(name: str, material: Material) -> None:
    model, rows = make("world model", name, material), material.dataset.test
    found = model.predict(rows, seed=1)
    confirmed = model.audit(rows, found, seed=1).checked(rows)
    assert confirmed.failure is None
    for column, values in found.columns.items():
        np.testing.assert_array_equal(values, confirmed.columns[column])


@every("world model")
def test_world_model_is_unchanged_after_saving_and_loading(name: str, material: Material) -> None:
    model = make("world model", name, material)
    path = material.folder / "saved"
    try:
        model.save(path)
    except CwmError as error:
        assert len(str(error).splitlines()) == 1
        return
    again = type(model).load(path, sandbox=material.sandbox)
    rows = material.dataset.test
    before, after = model.predict(rows).columns, again.predict(rows).columns
    for column, values in before.items():
        np.testing.assert_array_equal(values, after[column])


@every("contract")
def test_contract_describes_every_method_that_it_calls(name: str, material: Material) -> None:
    contract = make("contract", name, material)
    data = material.dataset
    words = contract.words(data.observation_space, data.action_space, tools=("mujoco",))
    missing = [method for method in contract.methods if method not in words]
    assert not missing, f"the words for a language model do not name {', '.join(missing)}"
    assert "mujoco" in words


@every("environment")
def test_environment_is_described_and_deterministic(name: str) -> None:
    spec = returned(find("environment", name)(), EnvironmentSpec, "what the hook names")
    assert spec.id == name.split(":", 1)[1], "the hook and the description have different names"
    with skip_if_unusable():
        env = spec.make()
        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    with closing(env), closing(spec.make()) as twin:
        assert spec.describe(env).strip(), "describe returns no text: a language model needs one"
        assert all(isinstance(version, str) for version in spec.versions().values())
        assert all(space.kind for space in spaces)
        rng = np.random.default_rng(0)
        observed, repeated = env.reset(seed=3)[0], twin.reset(seed=3)[0]
        for _ in range(5):
            assert env.observation_space.contains(observed), f"{observed!r} is outside its space"
            assert spaces[0].pack("o", [observed]).keys()
            for left, right in zip(_leaves(observed), _leaves(repeated), strict=True):
                np.testing.assert_array_equal(left, right)
            # One space draws for both environments.
            env.action_space.seed(int(rng.integers(2**31)))
            action = env.action_space.sample()
            observed, _, terminated, truncated, _ = env.step(action)
            repeated = twin.step(action)[0]
            if terminated or truncated:
                break


@every("environment")
def test_environment_can_be_set_to_an_observation(name: str) -> None:
    spec = find("environment", name)()
    if spec.restore is None:
        pytest.skip("it cannot be set to an observation")
    with skip_if_unusable():
        env, other = spec.make(), spec.make()
    with closing(env), closing(other):
        other.reset(seed=4)
        observed, over = env.reset(seed=3)[0], False
        for number in range(5):
            if over:
                break
            if returned(spec.restore(other.unwrapped, observed), bool, "what restore returns"):
                env.action_space.seed(number)
                other.unwrapped.step(env.action_space.sample())
            observed, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated


@every("environment")
def test_text_view_describes_transitions_and_candidates(name: str) -> None:
    spec = find("environment", name)()
    if spec.text is None:
        pytest.skip("it has no text view")
    with skip_if_unusable():
        env = spec.make()
    with closing(env):
        view, rng = spec.text(env), np.random.default_rng(0)
        assert view.guide().strip()
        assert set(view.conclusions) == set(view.kinds)
        for number in range(3):
            observation, over = env.reset(seed=number)[0], False
            while not over:
                action = int(rng.choice(view.legal(observation)))
                after, reward, terminated, truncated, _ = env.step(action)
                row = Transition(observation, action, after, float(reward), terminated)
                wrong = list(_wrong_words(view, row))
                assert not wrong, f"{view.state(observation)} {view.action(observation, action)}"
                observation, over = after, terminated or truncated or rng.random() < 0.05


def _wrong_words(view: TextView, row: Transition) -> Iterator[str]:
    """Yield errors in the words for a transition."""
    change, facts = view.change(row), view.facts(row.observation, row.action)
    candidates = view.candidates(row.observation)
    fields, known = change.fields, view.conclusions.get(change.kind, {})
    if not (change.text.strip() and view.action(row.observation, row.action).strip()):
        yield "the change or the action has no text"
    texts = {candidate.text for candidate in candidates}
    if change not in candidates or len(texts) < len(candidates):
        yield f"{change} is no candidate, or a candidate occurs twice"
    elif not view.reachable(row.observation)[candidates.index(change)]:
        yield f"{change} happened, but `reachable` returns False"
    for chosen, values in ((facts, view.vocabulary), (fields, known)):
        if chosen.keys() != values.keys() or any(v not in values[n] for n, v in chosen.items()):
            yield f"{chosen} has names or values that are not listed"
    if view.features(row.observation).shape != view.features(row.next_observation).shape:
        yield "the number of features varies"
    meant = view.consequence(row.observation, row.action, change)
    if meant is None:
        return
    followed = (*_leaves(row.next_observation), row.reward, row.terminated)
    if not all(map(np.array_equal, (*_leaves(meant.observation), *meant[1:]), followed)):
        yield f"`consequence` of {change} returns {meant}"


@every("environment")
def test_shift_depends_only_on_its_seed_and_keeps_the_spaces(name: str) -> None:
    spec = registry.environment(name)
    if spec.shift is None:
        pytest.skip("it cannot be shifted")
    with skip_if_unusable():
        standard, shifted, again = spec.make(), spec.make(shift=1), spec.make(shift=1)
    with closing(standard), closing(shifted), closing(again):
        for space in ("observation_space", "action_space"):
            assert getattr(shifted, space) == getattr(standard, space)
        assert spec.describe(shifted) == spec.describe(again) != spec.describe(standard)
        shifted.reset(seed=3), again.reset(seed=3)
        for number in range(5):
            shifted.action_space.seed(number)
            action = shifted.action_space.sample()
            left, right = shifted.step(action), again.step(action)
            assert repr(left[:3]) == repr(right[:3])


def _leaves(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, tuple | dict)
    return [leaf for part in parts for leaf in _leaves(part)] if nested else [value]


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(plugin, id=plugin.package.split()[0] + "-" + plugin.name)
        for plugin in registry.plugins().loaded
        if hasattr(plugin.module, "cwm_commands")
    ],
)
def test_command_has_a_help_page(plugin: registry.Plugin) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    given = {"app": app, "api": shared}
    hook = plugin.module.cwm_commands
    hook(**{name: given[name] for name in signature(hook).parameters})
    names = [command.name or "" for command in app.registered_commands]
    assert names
    for name in names:
        answer = CliRunner().invoke(app, [name, "--help"])
        assert answer.exit_code == 0, answer.output
        assert "Usage" in answer.output


@every("importer")
def test_importer_refuses_files_of_other_formats(name: str, material: Material) -> None:
    importer = make("importer", name, material)
    file = material.folder / "transitions.bin"
    for content in (b"", b"nothing of the kind", bytes(range(256)) * 8):
        file.write_bytes(content)
        importer.reads(file)
        with pytest.raises(CwmError) as refused:
            importer.read(file, material.spec, {}, SILENT)
        assert len(str(refused.value).splitlines()) == 1


@every("exporter")
def test_exporter_overwrites_only_its_own_exports(name: str, material: Material) -> None:
    target = material.folder / "written-v0"
    with skip_if_unusable("pip install"):
        made = export_transitions(material.dataset, name, out=target)
    assert made.path.exists()
    with pytest.raises(CwmError, match="already exists"):
        export_transitions(material.dataset, name, out=target)
    again = export_transitions(material.dataset, name, out=target, force=True)
    assert again.path == made.path
    assert [path.name for path in material.folder.iterdir()] == [made.path.name]
    other = material.folder / "other-v0"
    (other / "letters").mkdir(parents=True)
    with pytest.raises(CwmError, match="is not an export"):
        export_transitions(material.dataset, name, out=other, force=True)
    assert (other / "letters").is_dir()


@every("tracker")
def test_tracker_logs_numbers_or_explains_its_installation(
    name: str, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(material.folder)
    for variable in ("TRACKIO_DIR", "WANDB_DIR"):  # output folders of the built-in ones
        monkeypatch.setenv(variable, str(material.folder))
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = make("tracker", name, material)
    with skip_if_unusable("install"):
        tracker.ready()
    tracker.begin("project", "run", {"env": "anywhere", "seeds": [0, 1], "options": {"a": None}})
    for step in (1, 1, 3):
        tracker.log({"score": 0.5, "loss/reward": -1.0}, step)
    tracker.finish()


TOUCH = "from pathlib import Path; Path({file!r}).touch()"
FAIL = "import sys; sys.exit('Error: no rocks')"


@pytest.mark.slow
@every("executor")
def test_executor_runs_commands_and_reports_failures(
    name: str, material: Material, tmp_path: Path
) -> None:
    factory = find("executor", name)
    with skip_if_unusable("install"):
        example = registry.conformance_example("executor", name)
        executor = example(material) if example else factory(workers=2)
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    scripts = {file.stem: TOUCH.format(file=str(file)) for file in files} | {"failing": FAIL}
    left, reasons = list(scripts), dict[str, str | None]()
    while left or len(reasons) < len(scripts):
        while left and executor.has_room():
            command = left.pop()
            words = (sys.executable, "-c", scripts[command])
            executor.start(Command(command, words, tmp_path / "logs" / command))
        reasons |= {ended.name: ended.reason for ended in executor.wait()}
    executor.close()
    assert all(file.exists() for file in files)
    assert {command for command, reason in reasons.items() if reason} == {"failing"}
    assert "no rocks" in (reasons["failing"] or "")


@every("storage")
def test_storage_allows_one_writer_at_a_time(name: str, material: Material, tmp_path: Path) -> None:
    writer = make("storage", name, material)
    reader = type(writer)(tmp_path / "reader", writer.url)
    writer.folder.mkdir()
    for file, text in {HEADER: "{}", "nodes.jsonl": "1\n", "old.txt": "old"}.items():
        (writer.folder / file).write_text(text)
    writer.claim(fresh=True)
    writer.send("nodes.jsonl", HEADER)
    with (writer.folder / "nodes.jsonl").open("a") as journal:
        journal.write("2\n")
    (writer.folder / "old.txt").unlink()
    (writer.folder / "best.py").write_text("best")
    writer.send("nodes.jsonl")
    reader.bring()
    found = {file.name: file.read_text() for file in reader.folder.iterdir()}
    assert found == {HEADER: "{}", "nodes.jsonl": "1\n2\n", "best.py": "best"}
    with pytest.raises(BusyError):
        reader.claim()
    with pytest.raises(BusyError):
        reader.remove()
    (reader.folder / "best.py").write_text("better")
    reader.put(reader.folder / "best.py")  # by a reader of a run that is claimed
    writer.fetch(writer.folder / "best.py")
    writer.fetch(writer.folder / "missing.py")
    assert (writer.folder / "best.py").read_text() == "better"
    assert not (writer.folder / "missing.py").exists()
    writer.finish("nodes.jsonl")
    writer.release()
    with pytest.raises(BusyError):
        reader.claim(fresh=True)  # the run exists
    reader.claim()
    reader.release()
    reader.remove()
    assert not reader.folder.exists()
    later = type(writer)(tmp_path / "later", writer.url)
    later.bring()
    assert not (later.folder / HEADER).exists()


@every("run kind")
def test_run_kind_declares_its_header_and_records(name: str) -> None:
    kind = find("run kind", name)
    assert kind.kind == name.partition(":")[2]
    assert issubclass(kind.header_type, RunHeader)
    assert kind.header_type.model_fields["kind"].default == kind.kind
    for line in get_args(kind.record_type) or (kind.record_type,):
        assert issubclass(line, BaseModel)
    assert kind.journal_name.endswith(".jsonl")
