"""VQ tokenizer: published sizes, losses, measures, saved states and `cwm train` with images."""

import shutil

import numpy as np
import pytest

from cwm_cli import train
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import SILENT
from cwm_cli.worlds.model import Predictions, WorldModel
from cwm_neural.training.runs import TrainRun
from training_runs import journal_lines

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from cwm_neural.perceptual import STAGES, Lpips  # noqa: E402
from cwm_neural.reconstructing import illustrate, imagined  # noqa: E402
from cwm_neural.vq import Autoencoder, VqTokenizer, perceptual_loss  # noqa: E402
from cwm_neural.vq_options import VqOptions  # noqa: E402

pytestmark = pytest.mark.slow

SMALL = {"vq_frame": 16, "vq_side": 4, "vq_codes": 32, "vq_width": 16, "vq_channels": 32}


def falling(episodes=20, side=16, tile=4):
    """Return rows of a white square that falls by its size per step; landing left has reward 1."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(episodes):
        column, cells = int(rng.integers(side // tile)), side // tile
        pictures = np.zeros((cells, side, side, 3), np.uint8)
        for row in range(cells):
            part = slice(row * tile, (row + 1) * tile)
            pictures[row, part, column * tile : (column + 1) * tile] = 255
        for row in range(cells - 1):
            over = row == cells - 2
            reward = float(over and column < cells // 2)
            rows.append(
                Transition(pictures[row], 0, pictures[row + 1], reward, over, False, episode)
            )
    size = side * side * 3
    space = Space("box", "uint8", (side, side, 3), (0,) * size, (255,) * size)
    actions = Space("discrete", low=(0,), high=(2,))
    return Dataset.of(rows, observation_space=space, action_space=actions)


def tokenizer(rows, seed=0, **options):
    return VqTokenizer(rows.observation_space, VqOptions(**SMALL | options), seed=seed)


def count(part):
    return sum(weights.numel() for weights in part.parameters())


def test_presets_have_the_published_sizes():
    iris = Autoencoder(VqOptions(preset="iris"), 3)
    assert count(iris.encoder) == 1_418_240  # 1.42 M
    assert count(iris.decoder) == 1_821_827  # 1.82 M
    assert count(iris.codebook) == 512 * 512  # .26 M
    assert count(iris) == 4_027_523  # 4.03 M
    assert count(Autoencoder(VqOptions(preset="tiny"), 3)) == 212_355  # .21 M


@pytest.mark.parametrize("blocks", [0, 1], ids=["plain", "residual"])
def test_images_are_token_grids_and_keep_their_size(blocks):
    rows = falling(2, side=24, tile=8)  # the network scales images to 16
    made = tokenizer(rows, vq_blocks=blocks)
    tokens = made.encode(rows.select("observations"))
    assert tokens.shape == (len(rows), 16) == (len(rows), made.count)
    assert tokens.dtype == torch.int64 and 0 <= tokens.min() <= tokens.max() < made.vocabulary == 32
    back = made.decode(tokens, None)["observations"]
    assert back.shape == rows.columns["observations"].shape and back.dtype == np.uint8


def test_reconstructions_are_better_than_the_mean_image():
    rows = falling()
    made = tokenizer(rows, seed=1, vq_restart=200, vq_batch=16, vq_rate=3e-3)
    losses = made.fit(rows, 200)
    assert losses.keys() == {"reconstruction", "codebook"}
    found = made.measure(rows)
    assert found["reconstruction L1"] < found["mean picture L1"] / 3
    assert found["reconstruction PSNR"] > found["mean picture PSNR"] + 6
    assert 1 < found["code perplexity"] <= 32 * found["codes used"]


def test_restored_tokenizer_continues_identically(tmp_path):
    rows = falling()
    whole, first, second = (tokenizer(rows, seed=3, vq_restart=30, vq_critic=0.1) for _ in range(3))
    whole.fit(rows, 8)
    first.fit(rows, 4)
    torch.save(first.state(), tmp_path / "state.pt")
    second.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    second.fit(rows, 4)
    found = zip(
        whole.network.state_dict().items(), second.network.state_dict().values(), strict=True
    )
    assert [name for (name, one), other in found if not torch.equal(one, other)] == []


def test_straight_through_gradients_reach_the_encoder():
    network = Autoencoder(VqOptions(**SMALL), 3)
    seen = network(torch.rand(2, 3, 16, 16) * 2 - 1)
    assert torch.allclose(seen.passed, seen.codes, atol=1e-6)
    seen.passed.square().sum().backward()
    assert network.before.weight.grad.abs().sum() > 0
    assert network.codebook.weight.grad is None
    flat = seen.latents.movedim(1, -1)[..., None, :]
    nearest = (flat - network.codebook.weight).square().sum(-1).argmin(-1)
    assert torch.equal(nearest, seen.tokens)


def test_unused_codes_are_reset_to_latents():
    rows = falling()
    kept, restarted = (tokenizer(rows, vq_restart=every) for every in (0, 50))
    kept.network.codebook.weight.data[5:] = 100.0  # far from all latents
    restarted.network.codebook.weight.data[5:] = 100.0
    kept.fit(rows, 5)
    restarted.fit(rows, 5)
    assert (kept.network.codebook.weight[5:] > 99).all()
    assert (restarted.network.codebook.weight[5:] < 99).all()


def test_critic_learns_known_returns_and_is_off_by_default():
    rows = falling()
    assert not hasattr(tokenizer(rows).network, "critic")
    judged = tokenizer(rows, vq_critic=1.0, vq_batch=16, vq_rate=3e-3, vq_restart=200)
    judged.fit(rows, 150)
    variance = 0.2  # half of all episodes return 1: the squared error of a constant is larger
    assert judged.fit(rows, 10)["critic"] < variance / 4
    rows.columns["terminations"][:] = False  # unfinished episodes with fewer than 200 steps
    assert "critic" not in tokenizer(rows, vq_critic=1.0).fit(rows, 2)


def test_perceptual_loss_is_zero_for_equal_images():
    frames = torch.rand(2, 3, 16, 16) * 2 - 1
    assert perceptual_loss(frames, frames).abs() < 1e-5
    nearly, far = frames + 0.01, torch.zeros_like(frames)
    assert perceptual_loss(frames, nearly) < perceptual_loss(frames, far)
    assert "perceptual" in tokenizer(falling(), vq_perceptual=1.0).fit(falling(), 1)


def lpips_folder(folder, width=4, **changed):
    """Write random weights in the published formats, with few channels."""
    torch.manual_seed(0)
    features, linear, channels = {}, {}, 3
    for number, stage in enumerate(STAGES):
        for place in stage:
            features[f"features.{place}.weight"] = torch.randn(width, channels, 3, 3) / 3
            features[f"features.{place}.bias"] = torch.randn(width) / 3
            channels = width
        linear[f"lin{number}.model.1.weight"] = torch.rand(1, width, 1, 1)
    folder.mkdir()
    torch.save(features | changed, folder / "vgg16-397923af.pth")
    torch.save(linear, folder / "vgg.pth")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_equals_the_library_with_published_layers(tmp_path):
    library = pytest.importorskip("lpips")
    folder = lpips_folder(tmp_path / "weights", 8)
    given = torch.load(folder / "vgg16-397923af.pth")
    known = library.LPIPS(net="vgg", pretrained=False, pnet_rand=True, verbose=False)
    for number, stage in enumerate(STAGES, 1):
        for place in stage:
            layer = known.net.get_submodule(f"slice{number}.{place}")
            for name in ("weight", "bias"):
                setattr(layer, name, torch.nn.Parameter(given[f"features.{place}.{name}"]))
    for number in range(len(STAGES)):
        weights = torch.load(folder / "vgg.pth")[f"lin{number}.model.1.weight"]
        known.lins[number].model[1].weight = torch.nn.Parameter(weights)
    frames, made = torch.rand(2, 3, 3, 32, 32) * 2 - 1
    assert torch.allclose(Lpips(folder)(frames, made), known(frames, made).mean(), rtol=1e-5)


def test_lpips_is_zero_for_equal_images_and_has_gradients(tmp_path):
    distance = Lpips(lpips_folder(tmp_path / "weights"))
    frames, made = torch.rand(2, 3, 3, 16, 16) * 2 - 1
    assert distance(frames, frames) == 0
    assert distance(frames, frames + 0.01) < distance(frames, made)
    made.requires_grad_()
    distance(torch.zeros_like(frames), made).backward()
    assert made.grad.isfinite().all() and made.grad.abs().sum() > 0
    gray = frames[:, :1]
    assert distance(gray, -gray) == distance(
        gray.expand(-1, 3, -1, -1), -gray.expand(-1, 3, -1, -1)
    )


def test_tokenizer_learns_with_lpips_and_is_used_without_its_weights(tmp_path):
    folder = lpips_folder(tmp_path / "weights")
    known = {"env_args": CATCH, "model": "transformer", "agent": "random", "profile": "tiny"}
    options = QUICK | {"model.vq_lpips": str(folder)}
    found = train("Catch-v0", steps=40, options=options, run=tmp_path / "run", **known)
    assert found.epochs[-1].losses["lpips"] > 0
    shutil.rmtree(folder)
    model = TrainRun.load(found.run).trusted_model((), SILENT)
    assert model.tokenizer.count == 16
    with pytest.raises(CwmError, match=r"there is no vgg16\*.pth in .*: copy the weights of LPIPS"):
        train("Catch-v0", steps=80, options=options, run=tmp_path / "run", **known)


def test_wrong_weights_of_lpips_are_refused_on_one_line(tmp_path):
    for name, changed, words in (
        ("channels", {"features.2.weight": torch.rand(4, 7, 3, 3)}, "do not fit together"),
        ("shape", {"features.2.weight": torch.rand(4)}, "do not fit together"),
        ("kind", {"features.2.weight": "text"}, "do not fit together"),
    ):
        with pytest.raises(CwmError, match=words) as caught:
            Lpips(lpips_folder(tmp_path / name, **changed))
        assert "\n" not in str(caught.value)
    folder = lpips_folder(tmp_path / "files")
    torch.save({}, folder / "vgg.pth")
    with pytest.raises(CwmError, match=r"the weights 'lin0.model.1.weight' are missing in "):
        Lpips(folder)
    torch.save([1.0], folder / "vgg.pth")
    with pytest.raises(CwmError, match=r"are missing in "):
        Lpips(folder)
    (folder / "vgg.pth").write_bytes(b"<html>not found</html>")
    with pytest.raises(CwmError, match=r"vgg.pth has no weights of torch: copy it again"):
        Lpips(folder)
    with pytest.raises(CwmError, match="LPIPS needs images of 16 pixels"):
        tokenizer(falling(1), vq_frame=8, vq_lpips=str(lpips_folder(tmp_path / "small")))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"vq_frame": 20}, "halving 20 pixels"), ({"vq_blocks": 1, "vq_channels": 20}, "multiple")],
)
def test_invalid_sizes_are_refused(options, words):
    with pytest.raises(CwmError, match=words):
        tokenizer(falling(1), **options)


def test_vq_refuses_numbers():
    with pytest.raises(CwmError, match="needs pictures"):
        VqTokenizer(Space("box", "float64", (4,)), VqOptions())


class Still(WorldModel):
    """Predicts no changes, and sees all images upside down."""

    kind = "still"

    def predict(self, rows, *, seed=0, draws=1):
        columns = {f"next_{name}": part for name, part in rows.select("observations").items()}
        ends = np.zeros(len(rows), bool)
        return Predictions(columns | {"rewards": np.zeros(len(rows)), "terminations": ends})

    def seen(self, observations):
        return {name: column[:, ::-1] for name, column in observations.items()}


def test_reconstructions_and_imagined_episodes_are_written(tmp_path):
    from PIL import Image

    rows = falling(5)
    illustrate(Still(), rows, tmp_path, frame=8)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "imagined.gif",
        "reconstructions.png",
    ]
    panels = np.asarray(Image.open(tmp_path / "reconstructions.png"))
    assert (
        panels[:96, :96] == panels[100:196, :96]
    ).all()  # squares of 4 pixels are preserved at 8 x 8
    assert (panels[:96, :96] == panels[200:296, :96][::-1]).all()
    film = Image.open(tmp_path / "imagined.gif")
    assert film.n_frames == 4  # an episode has 3 steps
    frames = imagined(Still(), rows)
    assert (frames[0][:96] == frames[0][100:196]).all()  # the start
    assert (frames[-1][:96] != frames[-1][100:196]).any()
    assert (frames[-1][100:196] == frames[0][100:196]).all()


CATCH = {"rows": 4, "columns": 4}  # 16 x 16 pixels
QUICK = {
    "model.vq_frame": 16,
    "model.vq_channels": 32,
    "model.vq_width": 16,
    "model.vq_batch": 8,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.context": 2,
    "model.updates": 0.1,
    "model.tokenizer_updates": 0.1,
    "training.every": 40,
    "training.warm_up": 40,
    "training.test_every": 1,
    "training.tests": 1,
}


def test_image_models_can_use_the_tokenizer_of_another_run(tmp_path):
    known = {"env_args": CATCH, "model": "transformer", "agent": "random", "profile": "tiny"}
    first = train("Catch-v0", steps=80, options=QUICK, run=tmp_path / "first", **known)
    files = {file.name for file in first.run.iterdir()}
    assert files >= {"reconstructions.png", "imagined.gif"}
    second = train(
        "Catch-v0",
        steps=40,
        options=QUICK,
        init=[f"tokenizer={first.run}"],
        freeze=["tokenizer"],
        seed=1,
        run=tmp_path / "second",
        **known,
    )
    assert "reconstruction" not in second.epochs[-1].losses
    models = [TrainRun.load(each.run).trusted_model((), SILENT) for each in (first, second)]
    weights = [model.tokenizer.network.state_dict() for model in models]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(CwmError, match="vq_width is 16 in the file, but 32 here"):
        wider = QUICK | {"model.vq_width": 32}
        train("Catch-v0", steps=40, options=wider, init=[f"tokenizer={first.run}"], **known)


def test_newest_tests_keep_films_and_rows_of_episodes(tmp_path):
    from PIL import Image

    known = {"env_args": CATCH, "model": "transformer", "agent": "random", "profile": "tiny"}
    plain = train("Catch-v0", steps=120, options=QUICK, run=tmp_path / "plain", **known)
    media = QUICK | {"training.media": 2}
    found = train("Catch-v0", steps=120, options=media, run=tmp_path / "media", **known)
    assert journal_lines(found.run) == journal_lines(plain.run)
    assert not (plain.run / "media").exists()
    folder = found.run / "media"
    names = {f"epoch_{number:06}" for number in (2, 3)}  # of three tests
    pictures = {file.stem for file in (folder / "reconstructions").iterdir()}
    assert pictures == names
    for kind in ("train", "test", "imagination"):
        files = {file.name for file in (folder / "episodes" / kind).iterdir()}
        assert files == {f"{name}{suffix}" for name in names for suffix in (".gif", ".npz")}
        rows = Dataset.load(folder / "episodes" / kind / "epoch_000003.npz")
        assert (rows.columns["terminations"] | rows.columns["truncations"]).nonzero()[0] == [
            len(rows) - 1
        ]
        with Image.open(folder / "episodes" / kind / "epoch_000003.gif") as film:
            assert film.n_frames <= len(rows) + 1  # equal images share a frame
        if kind == "test":
            assert rows.columns["rewards"].sum() == found.tests[-1].returns[0]
            assert len(rows) == found.tests[-1].lengths[0]
    # The option is no part of the identity of a run.
    again = train("Catch-v0", steps=120, options=QUICK, run=found.run, **known)
    assert again.steps == 120


@pytest.mark.long
def test_policy_from_imagined_images_catches_more_than_random_play(tmp_path):
    """Train with 300 updates of the tokenizer and the sequence model, 100 of the policy."""
    options = {
        "model.context": 2,
        "model.layers": 2,
        "model.width": 64,
        "model.tokenizer_updates": 0.5,
        "model.updates": 0.5,
        "agent.updates": 0.2,
        "agent.horizon": 8,
        "training.warm_up": 600,
        "training.every": 600,
        "training.tests": 20,
    }
    found = train(
        "Catch-v0",
        env_args=CATCH | {"tile": 8},
        model="transformer",
        agent="actor-critic",
        profile="tiny",
        steps=600,
        options=options,
        run=tmp_path / "run",
    )
    first, last = found.random.mean, found.tests[-1].mean
    assert last > first + 0.5
