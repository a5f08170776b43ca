"""DreamerV3: training, actions, and unsupported spaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from cwm_cli.data.dataset import Dataset, Transition  # noqa: E402
from cwm_cli.data.spaces import Space  # noqa: E402
from cwm_cli.envs.tasks import Task  # noqa: E402
from cwm_cli.errors import CwmError  # noqa: E402
from cwm_cli.planning import Moment  # noqa: E402
from cwm_cli.planning.model import EpisodeHistory  # noqa: E402
from cwm_cli.worlds.model import Planning  # noqa: E402
from cwm_neural.dreamer import DreamerTrainer, DreamtPlanning  # noqa: E402
from cwm_neural.dreamer_parts import batch_of  # noqa: E402
from cwm_neural.sampling import EpisodeSampler  # noqa: E402
from cwm_neural.training.trainer import Diverged, TrainingTask  # noqa: E402

pytestmark = pytest.mark.slow

SMALLEST: dict[str, Any] = {
    "units": 16,
    "belief": 16,
    "batch": 2,
    "length": 8,
    "imagined": 2,
    "actor_from": 0,
}
TASK = Task(lambda: pytest.fail("the environment must not be used"), 0, 9)
PUSHES = Space("discrete", low=(0,), high=(1,))
FORCES = Space("box", "float32", (1,), (-2.0,), (2.0,))
PLACES = Space("box", "float32", (2,), (-np.inf,) * 2, (np.inf,) * 2)
PICTURES = Space("box", "uint8", (18, 20, 3), (0,) * 1080, (255,) * 1080)


def walk(space: Space = PLACES, actions: Space = PUSHES, episodes: int = 6) -> Dataset:
    """Return episodes of pushes that move a place by one, until its distance from 0 is two."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(episodes):
        place = 0
        for _ in range(12):
            push = int(rng.integers(2))
            after = place + 2 * push - 1
            action = push if actions is PUSHES else np.array([4.0 * push - 2], np.float32)
            rows.append(
                Transition(
                    observation_at(space, place),
                    action,
                    observation_at(space, after),
                    1.0,
                    abs(after) > 1,
                    episode=episode,
                )
            )
            place = after
            if abs(place) > 1:
                break
    return Dataset.of(rows, observation_space=space, action_space=actions)


def observation_at(space: Space, place: int) -> Any:
    """Return the observation at a place."""
    if space is PLACES:
        return np.array([place, -place], np.float32)
    picture = np.zeros(space.shape, np.uint8)
    picture[:, 8 + place * 2] = 255
    return picture


def untrained(rows: Dataset, **options: Any) -> Any:
    task = TrainingTask(rows.observation_space, rows.action_space)
    return DreamerTrainer(**SMALLEST | {"updates": 1.0, "warmup": 0} | options).begin(task)


def acts(training: Any, history: list[tuple[Any, Any]], **given: Any) -> list[Any]:
    """Return the actions in an episode of (action before, observation)."""
    session = training.agent.open(TASK, **given)
    moments = [Moment(0, n, state, 9 - n) for n, state in enumerate(history)]
    return [session.plan([moment])[0].actions[0] for moment in moments]


def test_segments_start_with_an_observation_without_action() -> None:
    rows = walk()
    net = untrained(rows)._networks
    batch = batch_of(rows, EpisodeSampler(rows), np.random.default_rng(0), net, (3, 10))
    flat = batch.reshape(-1)
    seen = flat["next", "observation"][:, 0]
    pushes = flat["action"][:, 1] - flat["action"][:, 0]
    begins, ends = flat["is_init"][:, 0], flat["next", "done"][:, 0]
    assert begins[::10].all()
    assert (begins[1:] | ~ends[:-1]).all()
    for place in range(1, 30):
        if not begins[place]:
            assert seen[place] == seen[place - 1] + pushes[place]
            assert flat["next", "terminated"][place] == (abs(seen[place]) > 1)
    assert (flat["next", "reward"][begins & (pushes == 0)] == 0).all()


def test_training_reduces_losses_and_errors() -> None:
    rows = walk(episodes=12)
    training = untrained(rows, rate=5e-3, imagined=1)
    before = training.measure(rows)
    first, last = training.fit(rows, 2), [training.fit(rows, 4) for _ in range(5)][-1]
    after = training.measure(rows)
    assert last["model reco"] < first["model reco"]
    assert last["model reward"] < first["model reward"]
    assert after["observation error"] < before["observation error"]
    assert after["reward error"] < before["reward error"]


def test_images_are_decoded_as_differences_from_their_mean() -> None:
    rows = walk(PICTURES)
    pixels = rows.columns["next_observations"] / 255
    variance = ((pixels - pixels.mean(axis=0)) ** 2).sum(axis=(1, 2, 3)).max()
    assert untrained(rows, channels=4).fit(rows, 1)["model reco"] <= variance


@pytest.mark.parametrize(("space", "actions"), [(PICTURES, PUSHES), (PLACES, FORCES)])
def test_images_and_real_actions_are_supported(space: Space, actions: Space) -> None:
    rows = walk(space, actions)
    training = untrained(rows, channels=4)
    training.fit(rows, 2)
    start = EpisodeHistory((rows.row(0).observation,))
    step = training.model.imagine([start], rows).step({"actions": rows.columns["actions"][:1]})
    assert step.observations["observations"].shape == (1, *space.shape)
    assert step.observations["observations"].dtype == space.dtype
    for greedy in (False, True):
        action = acts(training, [(None, start.observations[0])], greedy=greedy)[0]
        assert np.asarray(action).shape == actions.shape
        assert (np.abs(np.asarray(action) - 0.5) <= 2.5).all()


def test_actor_resets_its_memory_with_each_episode() -> None:
    rows = walk()
    training = untrained(rows)
    training.fit(rows, 3)
    session = training.agent.open(TASK)
    here = observation_at(PLACES, 0)
    policies = []
    for number, action in enumerate([None, 1, 0]):
        session.plan([Moment(0, number, (action, here), 9)])
        policies.append(session._memories[0].belief.numpy().copy())
    assert not np.array_equal(policies[0], policies[2])
    session.plan([Moment(0, 0, (None, here), 9)])
    np.testing.assert_array_equal(session._memories[0].belief.numpy(), policies[0])


def test_equal_reward_classes_cancel_for_any_batch_size() -> None:
    net = untrained(walk())._networks
    last = net.rewards.model[-1]
    with torch.no_grad():
        last.weight[:] = torch.randn(last.weight.shape[1], generator=torch.manual_seed(0))
    drawn = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    many = net.reset(64)._replace(belief=torch.from_numpy(drawn))
    # two sums of 16 products of about 1, with 16 rounding errors in double precision, times a class
    most = 2 * 16 * 16 * 2.0**-53 * net.scale.bins.abs().mean().item()
    with net.evaluating():
        for rows in (1, 2, 3, 5, 8, 64):
            parts = [
                net.rewards_and_ends(many.select(part))[0]
                for part in np.split(np.arange(64), range(rows, 64, rows))
            ]
            assert np.abs(np.concatenate(parts)).max() < most, rows


def test_returns_of_plans_equal_the_sum_of_their_steps() -> None:
    rows = walk()
    training = untrained(rows)
    training.fit(rows, 4)
    session = training.model.open([Planning("mcts", {"simulations": 9, "rollout": 3})], TASK)
    action = session.plan([Moment(0, 0, observation_at(PLACES, 0), 4)])[0].actions[0]
    assert action in (0, 1)
    assert session.steps > 0
    model = DreamtPlanning(training.model._networks)
    model.stand(observation_at(PLACES, 1))
    here = model.here()
    plans = np.random.default_rng(0).integers(2, size=(2, 3, 5))
    found = model.returns([here, observation_at(PLACES, -1)], plans)
    # parallel kernels sum in another order: 5 steps, 6 layers, sums of 80 float32 products
    near = 5 * 6 * 80 * 2.0**-24
    for place, start in enumerate((here, observation_at(PLACES, -1))):
        for number in range(3):
            model.stand(start)
            assert found[place, number] == pytest.approx(model.play(plans[place, number]), rel=near)


def test_actor_takes_only_valid_actions() -> None:
    rows = walk()
    session = untrained(rows).agent.open(TASK)
    here = (None, observation_at(PLACES, 0))
    taken = {session.plan([Moment(n, 0, here, 9, valid=(1,))])[0].actions[0] for n in range(20)}
    assert taken == {1}


def test_diverged_update_changes_nothing(tmp_path: Path) -> None:
    rows = walk()
    training = untrained(rows)
    training.fit(rows, 2)
    before = training.model.predict(rows).columns
    rows.columns["next_observations"][:] = np.nan
    with pytest.raises(Diverged, match="update 2"):
        training.fit(rows, 1)
    for name, column in training.model.predict(rows).columns.items():
        np.testing.assert_array_equal(column, before[name])


def test_adopted_and_frozen_part_stays_equal(tmp_path: Path) -> None:
    rows = walk()
    known, training = untrained(rows), untrained(rows)
    known.fit(rows, 3)
    known.save(tmp_path)
    training.adopt("decoder", tmp_path)
    training.freeze("decoder")
    training.fit(rows, 2)
    for part, same in (("decoder", True), ("encoder", False)):
        pairs = zip(known._of(part), training._of(part), strict=True)
        assert all(torch.equal(left, right) for left, right in pairs) == same


def test_actor_learns_only_after_actor_from() -> None:
    rows = walk()
    training = untrained(rows, actor_from=2)
    began = [each.detach().clone() for each in training._of("actor")]
    for waits in (True, True, False):
        training.fit(rows, 1)
        pairs = zip(began, training._of("actor"), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) == waits


def test_texts_and_unbounded_actions_are_refused() -> None:
    words = Space("text", max_length=9)
    endless = Space("box", "float32", (1,), (-np.inf,), (np.inf,))
    refused = ((words, PUSHES, "text observations"), (PLACES, endless, "bounded Box"))
    for seen, done, reason in refused:
        with pytest.raises(CwmError, match=reason):
            DreamerTrainer().begin(TrainingTask(seen, done))
