"""Base classes of trainers: world models and agents that are trained by gradient descent.

Trainers are dataclasses. Their fields are the options `-o model.KEY=VALUE` and
`-o agent.KEY=VALUE`, documented by the docstring below each field; a profile (`--profile`) is
their `preset`. Their modules import heavy packages on first use only; `requires` names the
packages that must be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError, install_command
from cwm_cli.presets import WithPresets
from cwm_cli.search.contracts import unheard

if TYPE_CHECKING:
    from pathlib import Path

    from cwm_cli.data.dataset import Dataset
    from cwm_cli.data.objects import ObjectSchema
    from cwm_cli.data.spaces import Space
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.tasks import Task
    from cwm_cli.worlds.model import PlanningSession, WorldModel


class EnvironmentChoice(Protocol):
    """The environment and the seed of a run."""

    @property
    def env(self) -> str:
        """The id of the environment."""

    @property
    def env_args(self) -> dict[str, Any]:
        """Its arguments."""

    @property
    def seed(self) -> int:
        """The seed of the run."""


class TrainingTask(NamedTuple):
    """The inputs of a training: spaces, schema of object tables, seed and device.

    `device` is cpu, cuda, cuda:N or mps, never auto. `tell` prints a line for the user. `env` and
    `env_args` name the environment; `env` is empty if there are only recorded rows. `restores`
    means that a saved state will be loaded and not trained on, so that files with initial weights
    or for losses are not needed.
    """

    observation_space: Space
    action_space: Space
    seed: int = 0
    device: str = "cpu"
    schema: ObjectSchema | None = None
    tell: Callable[[str], None] = unheard
    env: str = ""
    env_args: Mapping[str, Any] = MappingProxyType({})
    restores: bool = False

    @classmethod
    def of(
        cls,
        spec: EnvironmentSpec,
        config: EnvironmentChoice,
        device: str = "cpu",
        tell: Callable[[str], None] = unheard,
    ) -> Self:
        """Return the task for an environment."""
        with closing(spec.make(**config.env_args)) as env:
            return cls(
                space_of(env.observation_space),
                space_of(env.action_space, "actions"),
                seed=config.seed,
                device=device,
                schema=spec.objects(env) if spec.objects else None,
                tell=tell,
                env=config.env,
                env_args=config.env_args,
            )


class Diverged(CwmError):
    """A loss is not finite."""


class _Requiring(WithPresets):
    """A trainer with requirements that the core does not install."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    extra: ClassVar[str] = ""
    """The extra that installs them, in the notation of pip: `cwm-cli[neural]`."""

    @classmethod
    def missing(cls) -> str:
        """Return the first module that is not installed, or ""."""
        return next((name for name in cls.requires if find_spec(name) is None), "")

    @classmethod
    def check(cls) -> None:
        """Raise `CwmError` if a required module is missing."""
        if name := cls.missing():
            raise CwmError(f"this kind of model needs {name}: {install_command(cls.extra)}")


class Trainer(_Requiring):
    """A kind of world model that is trained by gradient descent.

    @dataclass
    class Copying(Trainer):
        rate: float = 1e-3  # documented by a docstring below it

        def begin(self, task):
            return CopyTraining(self, task)
    """

    agent: ClassVar[str] = "planner"
    """Default agent; "" if the training provides its own agent."""

    def begin(self, task: TrainingTask) -> Training:
        """Return an untrained model; raise `CwmError` if it does not support the spaces."""
        raise NotImplementedError

    def load_model(
        self, spec: EnvironmentSpec, config: EnvironmentChoice, folder: Path
    ) -> WorldModel:
        """Return the model of a training that was saved in a folder."""
        training = self.begin(TrainingTask.of(spec, config)._replace(restores=True))
        training.load(folder)
        return training.model


class Training:
    """A world model during its training, with the complete state of the training.

    Two trainings with the same task that are fitted to the same rows in the same portions are
    equal, bit by bit on one machine, even if one was saved and loaded between two portions.
    So random generators and optimisers belong to the saved state.
    """

    model: WorldModel
    """The current model; each call of `fit` changes it."""

    @property
    def agent(self) -> Agent | None:
        """The agent that this training also trains, None if the agent is separate."""
        return None

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters of each part."""
        return {}

    def adopt(self, part: str, folder: Path) -> None:
        """Copy the parameters of a part, or of the whole `model`, from a saved training.

        The state of optimisers is not copied.

        Raises:
            CwmError: If the part is unknown or has another shape.
        """
        raise self._no_part(part)

    def freeze(self, part: str) -> None:
        """Stop fitting a part."""
        raise self._no_part(part)

    def _no_part(self, part: str) -> CwmError:
        known = ", ".join(self.parameters) or "none"
        return CwmError(f"this model has no separate part {part!r} (its parts: {known})")

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Fit the model to rows.

        Args:
            rows: All rows so far.
            steps: Number of new environment steps. The trainer's options give the number of
                updates per step.

        Returns:
            The mean of each loss.

        Raises:
            Diverged: If a loss is not finite; the message names the update.
        """
        raise NotImplementedError

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Return measures of the prediction of held-out rows."""
        return {}

    def illustrate(self, rows: Dataset, folder: Path) -> None:
        """Write pictures of predictions of rows to a folder, if the model can draw any."""

    def save(self, folder: Path) -> None:
        """Write the complete state to files in an existing folder."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Restore a saved state; raise `CwmError` if it has another kind or shape."""
        raise NotImplementedError


class AgentTrainer(_Requiring):
    """A kind of agent that is trained in a world model, or on rows only."""

    needs_model: ClassVar[bool] = True
    """Whether the agent learns or plans in a world model."""
    learns: ClassVar[bool] = True
    """Whether the agent has anything to learn."""
    plans: ClassVar[bool] = False
    """Whether the agent takes the options of planners, as OWNER.KEY in `chosen`."""
    chosen: Mapping[str, Any] = MappingProxyType({})

    def begin(self, task: TrainingTask) -> Agent:
        """Return an untrained agent; raise `CwmError` if it does not support the spaces."""
        raise NotImplementedError


class Agent:
    """An agent that learns to act. Equal fits give equal agents, as for `Training`."""

    model: WorldModel | None = None
    """The model for learning and planning; set it again after `load`."""

    @property
    def parameters(self) -> Mapping[str, int]:
        """The number of parameters of each part."""
        return {}

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Train in the model, in episodes that begin at rows; see `Training.fit`."""
        raise NotImplementedError

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Return a session that acts in episodes of a task; `greedy` reduces randomness.

        The state of a moment is the result of the session's `state`. A memory belongs to one
        episode, and is reset at decision 0.
        """
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the complete state to files in an existing folder."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Restore a saved state; raise `CwmError` if it has another kind or shape."""
        raise NotImplementedError
