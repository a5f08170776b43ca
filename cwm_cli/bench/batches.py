"""Steps per second of every form of an exported program, of its environment and of many copies.

`bench_batches` is the function of `cwm bench-speed --batch`. The exported forms are texts that only
compute numbers (see `cwm_cli.worlds.translating`), so they run in this process. The program itself
runs in the sandbox only.

Forms with one thread are timed by the processor time of this thread, so that other processes
distort nothing. JAX and the sandbox are timed by the clock.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, NamedTuple
from uuid import uuid4

import gymnasium as gym
import numpy as np

from cwm_cli.bench.speed import Pace, SpeedProgress, Walk, paces, walk_model
from cwm_cli.commands.subjects import Subject, find_subject, protected
from cwm_cli.envs.variants import HIDE, NOISE, SHIFT
from cwm_cli.errors import CwmError
from cwm_cli.export import export_of
from cwm_cli.export.package import ExportForm
from cwm_cli.export.publishing import Export
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import ModelRun
from cwm_cli.sandbox import Limits
from cwm_cli.worlds.program import ProgramModel

BATCHES = (1, 64, 1024, 16_384)
"""Default numbers of environments that are stepped together."""

SCAN_STEPS = 20
"""Steps of one call of the JAX form, under `lax.scan`."""

FORMS = {
    "python": "plain Python",
    "numpy": "NumPy",
    "jax": "JAX",
    "environment": "environment",
    "vector": "environment, own vector form",
}
"""Titles of the forms, in the order of the output."""

_NO_PROGRAM = """class Environment:
    def __init__(self):
        raise NotImplementedError("a rare step needs the program itself, in the sandbox")
"""


@dataclass(frozen=True)
class BatchSpeeds(Result):
    """Steps per second by form and by number of environments that are stepped together.

    Attributes:
        batches: The numbers of environments.
        paces: Seconds per step of one environment, by form and by number of environments.
        reasons: Why a form has no figure, by form, or by form and number such as "numpy 64".
        sandboxed: Whether the form `python` is the program itself, in the sandbox, because it has
            no translation.
    """

    batches: Sequence[int]
    paces: Mapping[str, Mapping[int, Pace]]
    reasons: Mapping[str, str]
    sandboxed: bool = False

    def rate(self, form: str, batch: int) -> float | None:
        """Return the median steps per second of all environments together."""
        pace = self.paces.get(form, {}).get(batch)
        return None if pace is None else 1 / pace.median

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm bench-speed --batch --json`."""
        return {
            "batches": list(self.batches),
            "steps_per_second": {
                form: {str(batch): self.rate(form, batch) for batch in found}
                for form, found in self.paces.items()
            },
            "reasons": dict(self.reasons),
            "sandboxed": self.sandboxed,
        }


def bench_batches(
    run: Path | str | ModelRun[Any, Any],
    *,
    batches: Sequence[int] = BATCHES,
    allow_gap: Sequence[str] = (),
    seed: int = 0,
    observer: Observer = SILENT,
) -> BatchSpeeds:
    """Measure the steps per second of a run's program in every form, with random actions.

    All forms take turns, round by round. Episodes that end start again.

    Args:
        run: A run with a program, as for `cwm runs export`.
        batches: Numbers of environments that are stepped together.
        allow_gap: Missing protections of the sandbox that are accepted.
        seed: Seed of the actions.
        observer: Receives a `SpeedProgress` for each number.

    Raises:
        CwmError: The run has no program that can be exported, or a number is below 1.
    """
    batches = list(dict.fromkeys(batches))
    if not batches or min(batches) < 1:
        raise CwmError("--batch needs numbers of environments of at least 1, such as 1,64,1024")
    folder = run.folder if isinstance(run, ModelRun) else run
    plain = export_of(folder, form="python")
    export, reasons = translated_export(folder, plain, allow_gap)
    subject = find_subject(run, observer=observer)
    found: dict[str, dict[int, Pace]] = {}
    with ExitStack() as stack:
        package = stack.enter_context(imported(export)) if export else None
        model = None
        if package is None and subject.text is not None:
            limits = Limits.chosen(subject.limits)
            sandbox = protected(limits, tools=subject.tools, accepted=allow_gap, observer=observer)
            model = ProgramModel(subject.text, stack.enter_context(sandbox), subject.name)
        for batch in batches:
            observer.begins(SpeedProgress(f"timing {batch:,} environments"))
            try:
                with ExitStack() as envs:
                    walks = {} if package is None else package.walks(batch, seed)
                    if model is not None:
                        rows = subject.transitions()
                        chosen = np.random.default_rng(seed).integers(len(rows), size=batch)
                        walks["python"] = walk_model(model, rows[chosen], seed)
                    walks |= environment_walks(subject, batch, seed, envs, reasons)
                    guarded = {
                        form: _guarded(walk, f"{form} {batch}", reasons)
                        for form, walk in walks.items()
                    }
                    for form, pace in paces(guarded).items():
                        found.setdefault(form, {})[batch] = pace
            finally:
                observer.ends()
    ordered = {form: found[form] for form in FORMS if form in found}
    return BatchSpeeds(batches, ordered, reasons, package is None)


def translated_export(
    folder: Path | str, plain: Export, allow_gap: Sequence[str]
) -> tuple[Export | None, dict[str, str]]:
    """Return the export with all forms, and the reasons for forms that are missing."""
    reasons: dict[str, str] = {}
    form: ExportForm = "jax"
    if find_spec("jax") is None:
        form, reasons["jax"] = "numpy", "JAX is not installed: pip install 'cwm-cli[jax]'"
    try:
        return export_of(folder, form=form, accepted=allow_gap), reasons
    except CwmError as error:
        reason = str(error).removeprefix(f"the program has no form {form}: ")
        return None, {"numpy": reason, "jax": reason}


class Package(NamedTuple):
    """An imported export. `name` is the name of its Python package."""

    name: str
    limit: int | None
    has_jax: bool

    def module(self, name: str) -> Any:
        """Import a module of the package."""
        return importlib.import_module(f"{self.name}.{name}")

    def walks(self, batch: int, seed: int) -> dict[str, Walk]:
        """Return walks with random actions in each form."""
        if batch == 1:
            single = self.module("environment").WorldModelEnv()
            python = walk_single(gym.wrappers.TimeLimit(single, self.limit or 1_000_000), seed)
        else:
            python = walk_vector(self.module("vector").WorldModelVectorEnv(batch, self.limit), seed)
        numpy_form = self.module("batched_vector").BatchedWorldModelEnv(batch, self.limit)
        walks = {"python": python, "numpy": walk_vector(numpy_form, seed)}
        if self.has_jax:
            space = self.module("environment").WorldModelEnv().action_space
            walks["jax"] = walk_jax(self.module("jax_environment"), space, batch, seed)
        return walks


@contextmanager
def imported(export: Export, *, with_program: bool = False) -> Iterator[Package]:
    """Import an exported package from a temporary folder, under a name of its own.

    Args:
        export: The export.
        with_program: Import the program too, which then runs without a sandbox. Otherwise a step
            that only the program can compute raises `NotImplementedError`.
    """
    name = f"exported_{uuid4().hex}"
    module = str(export.facts["module"])
    with TemporaryDirectory(prefix="cwm-bench-") as folder:
        for path, content in export.files.items():
            owner, _, file = path.partition("/")
            if owner != module or (file == "program.py" and not with_program):
                continue
            # the original `__init__.py` registers an environment in Gymnasium
            target = Path(folder, name, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"" if file == "__init__.py" else content)
        if not with_program:
            Path(folder, name, "program.py").write_text(_NO_PROGRAM, encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            yield Package(name, export.facts["max_episode_steps"], "jax" in export.facts["forms"])
        finally:
            sys.path.remove(folder)
            for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
                del sys.modules[loaded]


def _guarded(walk: Walk, name: str, reasons: dict[str, str]) -> Walk:
    """Return a walk that stops without transitions if it fails; the reason is stored."""

    def guarded(steps: int) -> tuple[int, float]:
        if name not in reasons:
            try:
                return walk(steps)
            except (CwmError, NotImplementedError, ValueError) as error:
                reasons[name] = str(error)
        return 0, 0.0

    return guarded


def _actions(space: gym.Space[Any], seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(100)]


def walk_single(env: gym.Env[Any, Any], seed: int) -> Walk:
    """Return a walk with random actions in one environment; an episode that ends starts again."""
    actions = _actions(env.action_space, seed)
    env.reset(seed=seed)

    def walk(steps: int) -> tuple[int, float]:
        started = thread_time()
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(actions[step % 100])
            if terminated or truncated:
                env.reset()
        return steps, thread_time() - started

    return walk


def walk_vector(env: gym.vector.VectorEnv[Any, Any, Any], seed: int) -> Walk:
    """Return a walk with random actions in a vector environment."""
    actions = _actions(env.action_space, seed)
    env.reset(seed=seed)

    def walk(steps: int) -> tuple[int, float]:
        started = thread_time()
        for step in range(steps):
            env.step(actions[step % 100])
        return steps * env.num_envs, thread_time() - started

    return walk


def walk_jax(
    world: Any, space: gym.Space[Any], batch: int, seed: int, take_step: Any = None
) -> Walk:
    """Return a walk of many environments under `jit` and `lax.scan`, `SCAN_STEPS` at a time.

    Args:
        world: The module `jax_environment` of a package.
        space: The action space of an environment.
        batch: Number of environments.
        seed: Seed of the actions.
        take_step: Computes a step instead of the module's own function.
    """
    jax: Any = importlib.import_module("jax")
    space.seed(seed)
    actions = jax.numpy.array([space.sample() for _ in range(batch)])
    own = world.take_step

    def advance(states: Any, key: Any) -> Any:
        keys = jax.random.split(key, batch)
        _, states, rewards, _, _ = jax.vmap(world.step)(keys, states, actions)
        return states, rewards.sum()

    def scan(states: Any, key: Any) -> Any:
        return jax.lax.scan(advance, states, jax.random.split(key, SCAN_STEPS))

    play = jax.jit(scan)
    key = jax.random.key(seed)
    _, states = jax.vmap(world.reset)(jax.random.split(key, batch))
    world.take_step = take_step or own
    try:
        _, rewards = jax.block_until_ready(play(states, key))  # compiles the function
    finally:
        world.take_step = own
    if np.isnan(np.asarray(rewards)).any():
        raise NotImplementedError("a rare step needs the program itself, in the sandbox")

    def walk(steps: int) -> tuple[int, float]:
        started = perf_counter()
        for _ in range(steps):
            jax.block_until_ready(play(states, key))
        return steps * SCAN_STEPS * batch, perf_counter() - started

    return walk


def environment_walks(
    subject: Subject, batch: int, seed: int, stack: ExitStack, reasons: dict[str, str]
) -> dict[str, Walk]:
    """Return walks in copies of the true environment, and in its own vector form."""
    spec, env_args = subject.spec, subject.env_args
    if not spec.has_simulator(env_args):
        reasons["environment"] = reasons["vector"] = f"{subject.env} has no simulator"
        return {}
    started = perf_counter()
    env = spec.make(**env_args)
    seconds = perf_counter() - started
    walks: dict[str, Walk] = {}
    registered = env.unwrapped.spec
    if batch == 1:
        stack.callback(env.close)
        walks["environment"] = walk_single(env, seed)
    else:
        env.close()
        if seconds * batch > 10:
            words = f"making {batch:,} environments takes about {seconds * batch:.0f} s"
            reasons[f"environment {batch}"] = words
        else:
            copies = gym.vector.SyncVectorEnv([lambda: spec.make(**env_args)] * batch)
            stack.callback(copies.close)
            walks["environment"] = walk_vector(copies, seed)
    changed = [name for name in (SHIFT, HIDE, NOISE) if name in env_args]
    if registered is None or registered.vector_entry_point is None:
        reasons["vector"] = f"{subject.env} has no vector form of its own"
    elif changed:
        reasons["vector"] = f"the own vector form has no {changed[0]}"
    else:
        own = gym.make_vec(
            registered.id, batch, vectorization_mode="vector_entry_point", **env_args
        )
        stack.callback(own.close)
        walks["vector"] = walk_vector(own, seed)
    return walks
