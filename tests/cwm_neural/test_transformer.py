"""World models of tokens: training, imagination, and unsupported spaces."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cwm_cli.data.spaces import Space  # noqa: E402
from cwm_cli.errors import CwmError  # noqa: E402
from cwm_cli.planning.model import EpisodeHistory  # noqa: E402
from cwm_neural.backbones import Circuit, Transformer  # noqa: E402
from cwm_neural.sequence import SegmentBatch, TokenSequence, TokenSizes  # noqa: E402
from cwm_neural.token_world import TokenPlanning  # noqa: E402
from cwm_neural.tokens import around  # noqa: E402
from cwm_neural.training.trainer import Diverged, TrainingTask  # noqa: E402
from cwm_neural.transformer import TransformerTrainer  # noqa: E402
from walks import BOARD, WAYS, board, walks  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.slow

SIZES = TokenSizes(count=4, vocabulary=6, actions=3, rewards=2, context=4)
SMALL = {"layers": 1, "width": 32, "heads": 2, "batch_tokens": 900, "updates": 1.0, "rate": 3e-3}


def trained(rows, steps, **options):
    """Return a fitted training."""
    training = TransformerTrainer(**{**SMALL, **options}).begin(TrainingTask(BOARD, WAYS))
    training.fit(rows, steps)
    return training


def network(backbone="transformer", *, near=True):
    """Return a network with large random weights, so that every input has an effect."""
    torch.manual_seed(0)
    made = (
        Transformer(layers=2, width=16, heads=2, length=SIZES.context * (SIZES.count + 1))
        if backbone == "transformer"
        else Circuit(width=16, units=24)
    )
    model = TokenSequence(SIZES, made, around(2, 2) if near else None).eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    return model


@pytest.mark.parametrize("backbone", ["transformer", "circuit"])
@pytest.mark.parametrize("near", [True, False])
@torch.no_grad()
def test_predictions_with_memory_equal_those_of_whole_segments(backbone, near):
    if backbone == "circuit":
        pytest.importorskip("ncps")
    model = network(backbone, near=near)
    frames, actions = torch.randint(6, (3, 4, 4)), torch.randint(3, (3, 3))
    zeros = torch.zeros_like(actions)
    whole, outcome, _ = model.logits(SegmentBatch(frames, actions, zeros, zeros, zeros == 0))
    state = model.begin(frames[:, :-1], actions[:, :-1])
    predicted = model.teacher_forced(state, actions[:, -1], frames[:, -1])
    assert torch.allclose(predicted, whole[:, -1], atol=1e-4)
    followed = model.teacher_forced(
        model.begin(frames[:, :1], actions[:, :0]), actions[:, 0], frames[:, 1]
    )
    assert torch.allclose(followed, whole[:, 0], atol=1e-4)
    padded = torch.cat([torch.randint(6, (3, 1, 4)), frames[:, :2]], 1)
    before = torch.cat([torch.randint(3, (3, 1)), actions[:, :1]], 1)
    padded_state = model.begin(padded, before, torch.ones(3, dtype=torch.int64))
    assert torch.allclose(
        model.teacher_forced(padded_state, actions[:, 1], frames[:, 2]), whole[:, 1], atol=1e-4
    )
    if not near:  # otherwise outcomes depend on the next frame, which differs here
        assert torch.allclose(
            model.step(state, actions[:, -1])[1].ends, outcome.ends[:, -1], atol=1e-4
        )


@torch.no_grad()
def test_parallel_decoding_equals_sequential_decoding():
    model = network()
    frames, actions = torch.randint(6, (8, 1, 4)), torch.randint(3, (2, 8))
    noise = -torch.empty(2, 8, 4, 6).exponential_().log()
    found = {}
    for parallel in (True, False):
        model.backbone.parallel = parallel
        state, found[parallel] = model.begin(frames, actions[:, :0].reshape(8, 0)), []
        for done, drawn in zip(actions, noise, strict=True):
            after, outcome, state = model.step(state, done, drawn)
            found[parallel] += [after, outcome.rewards]
        state = model.keep(state, torch.tensor([5, 2]))
        found[parallel].append(model.step(state, done[:2], drawn[:2])[0])
    for together, one_by_one in zip(found[True], found[False], strict=True):
        assert torch.allclose(together.float(), one_by_one.float(), atol=1e-4)


@pytest.fixture(scope="module")
def walked():
    """Return a training that was fitted to the walks."""
    return trained(walks(), 100)


def test_walks_are_learned_exactly_and_imagined_beyond_the_context(walked):
    rows, training = walks(), walked
    held_out = walks(10, seed=1)
    measured = training.measure(held_out)
    assert measured["exact"] == 1
    assert measured["exact_5"] == 1
    assert measured["reward_f1"] == 1
    assert measured["copy_exact"] < 1
    assert not training.model.by_chance
    start = EpisodeHistory((board(1),))
    for context in (training.model, trained(rows, 100, context=4).model):
        imagined = context.imagine([start, start], rows, seed=0)
        seen = [imagined.step({"actions": np.array([1, 0])}) for _ in range(4)]
        assert [int(each.observations["observations"][0].argmax()) for each in seen] == [2, 3, 4, 5]
        assert [int(each.observations["observations"][1].argmax()) for each in seen] == [0] * 4
        assert [bool(each.terminated[0]) for each in seen] == [False, False, False, True]
        assert seen[-1].rewards.tolist() == [1, 0]


def test_longer_contexts_predict_hidden_state():
    rows, held_out = walks(bounces=True), walks(20, bounces=True, seed=1)
    short, long = trained(rows, 50, context=2), trained(rows, 100, context=4, layers=2)
    assert short.model.by_chance
    assert not short.model.remembers
    assert long.model.remembers
    exact = [each.measure(held_out)["exact"] for each in (short, long)]
    assert exact[1] > exact[0] + 0.15


def test_parallel_returns_equal_sequential_returns(walked):
    model = TokenPlanning(walked.model, 0, likeliest=True)
    plans = np.random.default_rng(0).integers(0, 2, (2, 5, 6))
    states = [board(2), board(4)]
    together = model.returns(states, plans)
    for state, some, returns in zip(states, plans, together, strict=True):
        for plan, returned in zip(some, returns, strict=True):
            model.stand(state)
            assert model.play(plan.tolist()) == returned
    assert together.max() == 1


def test_published_transformer_has_the_published_size():
    frames = Space("box", dtype="uint8", shape=(64, 64, 3), low=(0,) * 12288, high=(255,) * 12288)
    ways = Space("discrete", low=(0,), high=(3,))
    training = TransformerTrainer(preset="iris").begin(TrainingTask(frames, ways))
    assert training.model.network.sizes == TokenSizes(16, 512, 4, 3, 20)
    assert round(training.parameters["sequence"] / 1e6, 2) == 8.45


def test_frozen_layers_stay_equal_and_norms_learn():
    training = TransformerTrainer(**{**SMALL, "layers": 2}, unfrozen=1).begin(
        TrainingTask(BOARD, WAYS)
    )
    before = {k: v.clone() for k, v in training.model.network.state_dict().items()}
    training.fit(walks(5), 2)
    after = training.model.network.state_dict()
    same = {name for name, weights in before.items() if torch.equal(weights, after[name])}
    parts = ("asked", "joined", "wide", "narrow")
    frozen = {f"backbone.layers.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    assert same & {name for name in before if "layers" in name} == frozen


def test_transformer_refuses_real_actions_and_names_diverged_update():
    torques = Space("box", "float32", (1,), (-1.0,), (1.0,))
    with pytest.raises(CwmError, match="choose --model ensemble"):
        TransformerTrainer().begin(TrainingTask(BOARD, torques))
    with pytest.raises(CwmError, match="--tokenizer grid"):
        TransformerTrainer(tokenizer="vq").begin(TrainingTask(BOARD, WAYS))
    training = trained(walks(5), 1)
    with torch.no_grad():
        training.model.network.tokens.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match="at update 2"):
        training.fit(walks(5), 1)
