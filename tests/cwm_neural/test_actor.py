"""Actor-critic and conservative Q-learning agents: losses, policies and behaviour."""

from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cwm_cli.commands.episodes import play  # noqa: E402
from cwm_cli.commands.recording import record  # noqa: E402
from cwm_cli.data.dataset import Dataset, Transition  # noqa: E402
from cwm_cli.data.spaces import Space  # noqa: E402
from cwm_cli.envs.tasks import Task  # noqa: E402
from cwm_cli.errors import CwmError  # noqa: E402
from cwm_cli.registry import environment  # noqa: E402
from cwm_cli.worlds.environment import EnvironmentModel  # noqa: E402
from cwm_cli.worlds.model import Predictions, WorldModel  # noqa: E402
from cwm_neural.actor import ActorCriticTrainer, DecidedStep, ImaginedBatch  # noqa: E402
from cwm_neural.actor_networks import (  # noqa: E402
    CategoricalPolicy,
    GaussianPolicy,
    ObservationEncoder,
    policy_of,
)
from cwm_neural.training.trainer import TrainingTask  # noqa: E402

pytestmark = pytest.mark.slow
torch.set_num_threads(1)

PLACES = Space("discrete", low=(0,), high=(6,))
ACTIONS = Space("discrete", low=(0,), high=(2,))


@dataclass
class Walk(WorldModel):
    """Places 0 to 6: actions 1 and 2 move down and up, 0 stays; 6 is the end with reward 1."""

    kind = "walk"
    remembers: bool = False  # type: ignore[misc]

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        moves = np.array([0, -1, 1])[rows.columns["actions"]]
        after = (rows.columns["observations"] + moves).clip(0, 6)
        columns = {"next_observations": after, "rewards": (after == 6) * 1.0}
        return Predictions({**columns, "terminations": after == 6})


def walked(*, valid: bool = False) -> Dataset:
    """Return rows of a walk up and down again, without the end."""
    places = [*range(6), *range(4, -1, -1)]
    allowed = (0, 2) if valid else None
    return Dataset.of(
        [
            Transition(a, 2 if b > a else 1, b, 0.0, False, valid=allowed)
            for a, b in pairwise(places)
        ],
        observation_space=PLACES,
        action_space=ACTIONS,
    )


def actor(rows: Dataset, seed: int = 0, **options: object):
    """Return a small untrained agent."""
    smallest = {"width": 16, "starts": 16, "horizon": 8, "rate": 1e-2, "updates": 1.0}
    trainer = ActorCriticTrainer(**{**smallest, **options})
    return trainer.begin(TrainingTask(rows.observation_space, rows.action_space, seed))


def chosen(agent, places: range, allowed: tuple[int, ...] | None = None) -> list[int]:
    """Return the first action of an agent at each place."""
    from cwm_cli.planning import Moment

    with agent.open(None, greedy=True) as session:
        moments = [Moment(place, 0, place, 9, allowed) for place in places]
        return [plan.actions[0] for plan in session.plan(moments)]


def test_lambda_returns_equal_the_formula() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    ended = np.zeros((4, 3), bool)
    ended[2, 1] = True
    nothing = torch.zeros(3)
    decided = [
        DecidedStep(np.arange(3), torch.as_tensor(each), nothing, nothing) for each in values[:-1]
    ]
    found = ImaginedBatch(decided, rewards, ended, values[-1]).returns(0.9, 0.8)
    expected = values[-1].copy()
    for step in (3, 2, 1, 0):
        ahead = 0.2 * values[step + 1] + 0.8 * expected
        expected = rewards[step] + 0.9 * ~ended[step] * ahead
        np.testing.assert_allclose(found[step], expected)


def test_published_actor_critic_has_the_published_size() -> None:
    picture = Space("box", "uint8", (64, 64, 3), (0.0,) * 12288, (255.0,) * 12288)
    task = TrainingTask(picture, Space("discrete", low=(0,), high=(3,)))
    counted = ActorCriticTrainer(preset="iris").begin(task).parameters["actor-critic"]
    assert round(counted / 1e6, 2) == 3.22


@pytest.mark.parametrize("memory", [False, True])
def test_actor_critic_reaches_a_goal_outside_the_rows(memory: bool) -> None:
    rows = walked()
    agent = actor(rows, memory=memory, burn_in=3)
    agent.fit(Walk(), rows, 50)
    assert chosen(agent, range(6)) == [2] * 6


def test_actor_critic_never_takes_invalid_actions() -> None:
    rows = walked(valid=True)
    agent = actor(rows)
    losses = agent.fit(RestrictedWalk(), rows, 10)
    assert np.isfinite(losses["entropy"])
    assert set(chosen(agent, range(6), (0, 1))) <= {0, 1}


class RestrictedWalk(Walk):
    """A walk without the action down; it fails if the agent takes it."""

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        found = super().predict(rows, seed=seed)
        down = (rows.columns["actions"] == 1) & (np.arange(len(rows)) < 0)
        assert not down.any()
        mask = np.tile(np.array([True, False, True]), (len(rows), 1))
        return Predictions({**found.columns, "valid_actions": mask})


def test_memory_depends_on_its_own_episode_only() -> None:
    rows = walked()
    agent = actor(rows, memory=True, burn_in=2)
    agent.fit(Walk(), rows, 3)
    from cwm_cli.planning import Moment

    def states(session, episode: int) -> list[float]:
        for decision in range(3):
            session.plan([Moment(episode, decision, decision, 9)])
        return session._memories[episode][0].tolist()

    with agent.open(None, greedy=True) as session:
        first = states(session, 0)
        assert states(session, 1) == first
        session.plan([Moment(0, 3, 5, 9), Moment(1, 3, 2, 9)])
        assert states(session, 0) == first


def test_policies_sample_their_distribution_within_bounds() -> None:
    rng = np.random.default_rng(0)
    policy = CategoricalPolicy(ACTIONS)
    outputs = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4000, 1)
    drawn = policy.choose(outputs, policy.noise(rng, 4000)).actions["actions"]
    shares = np.bincount(drawn, minlength=3) / 4000
    np.testing.assert_allclose(shares, outputs[0].softmax(0).numpy(), atol=0.03)
    box = Space("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))
    squashed = GaussianPolicy(box)
    actions = squashed.choose(torch.randn(500, 4) * 9, squashed.noise(rng, 500)).actions["actions"]
    assert actions.dtype == np.float32
    assert (actions >= box.low).all() and (actions <= box.high).all()
    with pytest.raises(CwmError, match="multibinary"):
        policy_of(Space("multibinary", shape=(2,), low=(0, 0), high=(1, 1)))


def test_encoder_supports_all_leaf_types() -> None:
    parts = {
        "board": Space("box", "int64", (3, 3), (0.0,) * 9, (5.0,) * 9),
        "far": Space("box", "int64", (1,), (-1e6,), (1e6,)),
        "speed": Space("box", "float32", (2,), (-np.inf,) * 2, (np.inf,) * 2),
        "words": Space("text", max_length=20),
    }
    space = Space("dict", keys=tuple(parts), children=tuple(parts.values()))
    values = [
        {
            "board": np.full((3, 3), n),
            "far": np.array([n * 1000]),
            "speed": np.array([n, 1e9], np.float32),
            "words": ["open the door", "", "a"][n],
        }
        for n in range(3)
    ]
    encoder = ObservationEncoder(space, width=8, channels=4, layers=1)
    found = encoder(space.pack("observations", values))
    assert found.shape == (3, 8)
    assert torch.isfinite(found).all()
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_normalised_encoder_separates_boards_with_few_changes() -> None:
    board = Space("multidiscrete", shape=(200,), low=(0,) * 200, high=(3,) * 200)
    boards = np.full((4, 200), 2)
    boards[:, 7] = range(4)
    rows = Dataset.of(
        [Transition(each, 0, each, 0.0, False) for each in boards],
        observation_space=board,
        action_space=ACTIONS,
    )
    encoder = ObservationEncoder(board, width=32, channels=4, layers=0)

    def apart() -> float:
        found = encoder(rows.select("observations")).detach()
        return float(torch.pdist(found).min() / found.norm(dim=1).mean())

    before = apart()
    encoder.normalise(rows)
    assert before < 0.5 < apart()


def test_actor_critic_balances_a_pole_after_imagined_training() -> None:
    spec = environment("CartPole-v1")
    rows = record(spec, policy="random", episodes=12, test_episodes=1).train
    agent = ActorCriticTrainer(starts=16, horizon=40, rate=3e-3).begin(
        TrainingTask(rows.observation_space, rows.action_space)
    )
    agent.fit(EnvironmentModel(spec), rows, 50)
    task = Task(spec.make, 5, 200, None)
    with closing(agent.open(task, greedy=True)) as session:
        played = [each for progress in play(task, range(4), session) for each in progress.finished]
    assert np.mean([each.episode.returned for each in played]) > 100


def test_environment_model_imagines_its_predictions() -> None:
    spec = environment("CartPole-v1")
    rows = record(spec, policy="random", episodes=3, test_episodes=0).train
    model = EnvironmentModel(spec)
    from cwm_cli.planning.model import EpisodeHistory

    starts = [EpisodeHistory((row.observation,)) for row in rows][:5]
    for episodes in (model.imagine(starts, rows), WorldModel.imagine(model, starts, rows)):
        episodes.keep(np.array([3, 1]))
        after = episodes.step({"actions": rows.columns["actions"][[3, 1]]})
        np.testing.assert_allclose(
            after.observations["observations"], rows.columns["next_observations"][[3, 1]], atol=1e-6
        )
        assert after.rewards.tolist() == [1.0, 1.0]


def offline(rows: Dataset, steps: int, **options: object):
    """Return an agent that has learned from rows alone."""
    pytest.importorskip("torchrl")
    from cwm_neural.cql import CqlTrainer

    trainer = CqlTrainer(**{"width": 16, "batch": 32, "rate": 1e-2, **options})
    agent = trainer.begin(TrainingTask(rows.observation_space, rows.action_space))
    assert np.isfinite([*agent.fit(None, rows, steps).values()]).all()
    return agent


def test_cql_prefers_rewarded_actions_of_rows() -> None:
    places = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 20))
    rows = Dataset.of(
        [
            Transition(int(a), 2 - a % 2, min(int(a) + 1, 6), float(a % 2 == 0), True, episode=n)
            for n, a in enumerate(places)
        ],
        observation_space=PLACES,
        action_space=ACTIONS,
    )
    assert chosen(offline(rows, 40), range(6)) == [2, 1, 2, 1, 2, 1]


def test_cql_actions_stay_within_bounds() -> None:
    seen = Space("box", "float32", (1,), (-1.0,), (1.0,))
    box = Space("box", "float32", (2,), (-2.0, 0.0), (2.0, 1.0))
    rng = np.random.default_rng(0)
    acts = rng.uniform(box.low, box.high, (40, 2)).astype(np.float32)
    at = [np.array([x], np.float32) for x in rng.uniform(-1, 1, 41)]
    rows = Dataset.of(
        [Transition(at[n], a, at[n + 1], -float(a[0] ** 2), False) for n, a in enumerate(acts)],
        observation_space=seen,
        action_space=box,
    )
    agent = offline(rows, 3)
    from cwm_cli.planning import Moment

    with agent.open(None) as session:
        [plan] = session.plan([Moment(0, 0, at[0], 9)])
    assert (plan.actions[0] >= box.low).all() and (plan.actions[0] <= box.high).all()
    endless = Space("box", "float32", (1,), (-np.inf,), (np.inf,))
    from cwm_neural.cql import CqlTrainer

    with pytest.raises(CwmError, match="needs bounded Box actions"):
        CqlTrainer().begin(TrainingTask(seen, endless))
