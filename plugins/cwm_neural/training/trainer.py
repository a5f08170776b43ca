"""The seam of training: what is fitted to rows by gradient descent, and stopped and continued.

Trainers are dataclasses whose fields are their options (`-o model.KEY=VALUE`,
`-o agent.KEY=VALUE`), with their meaning in the docstring under each; a profile (`--profile`) is
their `preset`. Their modules import nothing heavy at the top: `requires` names the packages that
have to be there.
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
    """The environment of a run, and its seed."""

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
    """What is trained for: spaces, what object tables stand for, a seed, and a device.

    `device` is cpu, cuda, cuda:N or mps: never auto. `tell` says a line to the user. `env` and
    `env_args` name the environment, empty where only rows of it are there.
    """

    observation_space: Space
    action_space: Space
    seed: int = 0
    device: str = "cpu"
    schema: ObjectSchema | None = None
    tell: Callable[[str], None] = unheard
    env: str = ""
    env_args: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        spec: EnvironmentSpec,
        config: EnvironmentChoice,
        device: str = "cpu",
        tell: Callable[[str], None] = unheard,
    ) -> Self:
        """Return the task of training for an environment."""
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
    """A loss is not a number any more."""


class _Requiring(WithPresets):
    """A trainer that needs packages which are not part of the core."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that have to be installed."""
    extra: ClassVar[str] = ""
    """What brings them, as pip calls it: `cwm-cli[neural]`."""

    @classmethod
    def missing(cls) -> str:
        """Name a module that is not installed, "" where all are there."""
        return next((name for name in cls.requires if find_spec(name) is None), "")

    @classmethod
    def check(cls) -> None:
        """Refuse to go on without what is required."""
        if name := cls.missing():
            raise CwmError(f"this kind of model needs {name}: {install_command(cls.extra)}")


class Trainer(_Requiring):
    """A kind of world model that is learned by gradient descent.

    @dataclass
    class Copying(Trainer):
        rate: float = 1e-3  # with its meaning in a docstring below

        def begin(self, task):
            return CopyTraining(self, task)
    """

    agent: ClassVar[str] = "planner"
    """Which agent acts where none is named; "" where the training brings one of its own."""

    def begin(self, task: TrainingTask) -> Training:
        """Make a model that has learned nothing; `CwmError` where it cannot serve the spaces."""
        raise NotImplementedError

    def load_model(
        self, spec: EnvironmentSpec, config: EnvironmentChoice, folder: Path
    ) -> WorldModel:
        """Return the model of a training that was saved in a folder."""
        training = self.begin(TrainingTask.of(spec, config))
        training.load(folder)
        return training.model


class Training:
    """A world model that is being trained, and all that decides how it goes on.

    Two that began equally and were fitted to equal rows in equal portions are equal, to the last
    bit on one machine, also where one of them was saved and loaded between: generators of random
    numbers and the state of optimisers are part of what is saved.
    """

    model: WorldModel
    """As it is now; it changes with every `fit`."""

    @property
    def agent(self) -> Agent | None:
        """An agent that is trained with it, and not beside it."""
        return None

    @property
    def parameters(self) -> Mapping[str, int]:
        """How many parameters each part has."""
        return {}

    def adopt(self, part: str, folder: Path) -> None:
        """Take over a part, or all of it (`model`), from what another training saved in a folder.

        Its parameters count, not the state of optimisers; `CwmError` for what is of another shape.
        """
        raise self._no_part(part)

    def freeze(self, part: str) -> None:
        """Fit a part no more."""
        raise self._no_part(part)

    def _no_part(self, part: str) -> CwmError:
        known = ", ".join(self.parameters) or "none"
        return CwmError(f"this model has no separate part {part!r} (its parts: {known})")

    def fit(self, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Fit it to rows, as long as so many new steps of the environment are worth.

        The ratio of updates to steps is an option of the trainer. Returns the mean of each loss;
        `Diverged` where one is not finite, which names the update.
        """
        raise NotImplementedError

    def measure(self, rows: Dataset) -> Mapping[str, float]:
        """Say how well it predicts rows that it was not fitted to, in numbers of its own."""
        return {}

    def illustrate(self, rows: Dataset, folder: Path) -> None:
        """Write files that show people what it makes of rows, if there is anything to see."""

    def save(self, folder: Path) -> None:
        """Write all of it to files in a folder that is there."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; `CwmError` for what is of another kind or shape."""
        raise NotImplementedError


class AgentTrainer(_Requiring):
    """A kind of agent that learns to act: in a world model, or from rows alone."""

    needs_model: ClassVar[bool] = True
    """Whether it learns, or plans, in a world model."""
    learns: ClassVar[bool] = True
    """Whether there is anything that it learns by itself."""
    plans: ClassVar[bool] = False
    """Whether options of planners are for it, by OWNER.KEY in `chosen`."""
    chosen: Mapping[str, Any] = MappingProxyType({})

    def begin(self, task: TrainingTask) -> Agent:
        """Make an agent that has learned nothing; `CwmError` where it cannot serve the spaces."""
        raise NotImplementedError


class Agent:
    """Learns to act, and acts. What `Training` says of being equal holds for it, too."""

    model: WorldModel | None = None
    """What it learns and plans in, once that is there: what was loaded has to be told it again."""

    @property
    def parameters(self) -> Mapping[str, int]:
        """How many parameters each part has."""
        return {}

    def fit(self, model: WorldModel | None, rows: Dataset, steps: int) -> Mapping[str, float]:
        """Learn in the model from where rows begin, as long as so many new steps are worth."""
        raise NotImplementedError

    def open(self, task: Task, *, greedy: bool = False, seed: int = 0) -> PlanningSession:
        """Begin to act in episodes of a task; `greedy` draws less, or nothing.

        A moment's state is what the session's `state` returned. A memory is that of an episode:
        it begins anew with decision 0.
        """
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write all of it to files in a folder that is there."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote; `CwmError` for what is of another kind or shape."""
        raise NotImplementedError
