"""`-o model.pretrained`: layers of a GPT-2 in a folder, or from the hub."""

import json
import shutil

import pytest

from cwm_cli import train
from cwm_cli.errors import CwmError
from cwm_cli.runs.observer import SILENT
from cwm_neural.training.runs import TrainRun
from hub_server import HubServer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

from cwm_neural.backbones import Transformer, read_gpt2  # noqa: E402

pytestmark = pytest.mark.slow

SHAPE = {"layers": 2, "width": 16, "heads": 2}
OPTIONS = {f"model.{name}": value for name, value in SHAPE.items()} | {
    "model.updates": 0.1,
    "training.every": 40,
    "training.warm_up": 40,
    "training.tests": 0,
}
LAKE = {"env_args": {"is_slippery": False}, "model": "transformer", "agent": "random", "steps": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a small GPT-2 in the format of the hub, as published: with a head."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=9)
    model = transformers.GPT2LMHeadModel(config)
    for weights in model.parameters():  # so that no norm or bias has its usual values
        torch.nn.init.normal_(weights, std=0.2)
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return folder


def backbone(**changed):
    return Transformer(**SHAPE | {"length": 32, "smooth": "tanh"} | changed)


def test_layers_of_a_folder_compute_the_same_as_the_library(folder):
    own = backbone().eval()
    read_gpt2(own, str(folder))
    known = transformers.GPT2Model.from_pretrained(folder).eval()
    inputs = torch.randn(3, 20, 16)
    with torch.no_grad():
        known.wpe.weight.zero_()  # our embeddings include positions
        wanted = known(inputs_embeds=inputs).last_hidden_state
        assert torch.allclose(own(inputs)[0], wanted, atol=1e-5)


def test_training_starts_from_pretrained_layers_and_is_used_without_them(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    options = OPTIONS | {"model.pretrained": str(copy), "model.unfrozen": 0}
    found = train("FrozenLake-v1", options=options, run=tmp_path / "run", **LAKE)
    shutil.rmtree(copy)
    model = TrainRun.load(found.run).trusted_model((), SILENT)
    known = transformers.GPT2Model.from_pretrained(folder)
    trained = model.network.backbone
    for layer, block in zip(trained.layers, known.h, strict=True):  # these are frozen
        assert torch.equal(layer.asked.weight, block.attn.c_attn.weight.T)
    assert not torch.equal(trained.norm.weight, known.ln_f.weight)
    assert trained.layers[0].smooth == "tanh"


def test_names_are_read_from_the_hub(cwm, folder):
    names = ("config.json", "model.safetensors")
    files = {f"/someone/small/resolve/main/{name}": (folder / name).read_bytes() for name in names}
    options = OPTIONS | {"model.pretrained": "someone/small"}
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    command = ("train", "--env", "FrozenLake-v1", "--model", "transformer", "--agent", "random")
    with HubServer(b"", files=files) as server:
        cwm.environment |= {"HF_ENDPOINT": server.url, "HF_HOME": str(cwm.folder / "hub")}
        found = cwm(*command, *words, "--steps", "40", "--run", "r")
        assert found.returncode == 0, found.stderr
        assert len(server.bodies) >= 2
        command = (*command, *words[:-1], "model.pretrained=someone/else", "--run", "s")
        missing = cwm(*command)
    assert missing.returncode == 1
    assert missing.stderr.startswith("Error: cannot load a GPT-2 from someone/else (")
    assert missing.stderr.count("\n") == 1
    assert not (cwm.folder / "s").exists()


def test_unusable_models_are_refused_on_one_line(folder, tmp_path):
    wide = backbone(width=32, layers=1)
    with pytest.raises(CwmError, match=r"another shape: add -o model\.layers=2 -o model\.width"):
        read_gpt2(wide, str(folder))
    copies = {name: shutil.copytree(folder, tmp_path / name) for name in ("cut", "bare", "other")}
    weights = copies["cut"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (copies["bare"] / "model.safetensors").unlink()
    (copies["other"] / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "empty").mkdir()
    one = transformers.GPT2Model.from_pretrained(folder)
    del one.h[1]
    one.save_pretrained(tmp_path / "part")
    shutil.copy(folder / "config.json", tmp_path / "part" / "config.json")
    for name, words in {
        "cut": "cannot load a GPT-2 from ",
        "bare": "cannot load a GPT-2 from ",
        "empty": "cannot load a GPT-2 from ",
        "absent": "cannot load a GPT-2 from ",
        "other": "is a bert: choose a GPT-2",
        "part": "lacks weights",
    }.items():
        with pytest.raises(CwmError, match=words) as caught:
            read_gpt2(backbone(), str(tmp_path / name))
        assert "\n" not in str(caught.value), name
