"""The configuration files of published runs work, also without a language model."""

import json
import re
from pathlib import Path

import pytest

from folders import ROOT
from language_server import LanguageServer
from openai_server import answer

FILES = sorted((ROOT / "examples" / "worldllm").glob("*.toml"))
LESS = '[theorize.option]\n"experimenter.environments" = 2\n"experimenter.steps" = 10\n'
"""Less data for the RL agent."""

NO_MODEL = ("--theorist", "grammar", "--statistician", "symbolic")


def short(file: Path, folder: Path) -> Path:
    """Copy a file with less data per phase."""
    text = file.read_text()
    made = folder / file.name
    curious = 'experimenter = "curiosity"' in text
    made.write_text(text.replace("[theorize.option]\n", LESS) if curious else text)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_published_run_has_its_settings_and_ends(file, cwm, monkeypatch) -> None:
    wants_model = 'experimenter = "llm"' in file.read_text()
    if 'experimenter = "curiosity"' in file.read_text():
        pytest.importorskip("sb3_contrib")
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", "unused")
    with LanguageServer(script=[answer("If colour is blue, then closed.")]) as server:
        server_or_none = ("--api-base", server.url) if wants_model else NO_MODEL
        asked = ("--phases", "2", "--proposals", "2", "--run", "r", "--json", *server_or_none)
        steps = ("--max-steps", "2") if wants_model else ()
        file = short(file, cwm.folder)
        done = cwm.inside("--config", str(file), "theorize", *asked, *steps)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["number"] for each in found["phases"]] == [1, 2]
    config = json.loads((cwm.folder / "r" / "run.json").read_text())["config"]
    options = config["options"]
    assert options["strategy"]["preset"] == "paper"
    assert options["problem"]["policy"] == "phase"
    assert (config["seed"], config["method"] == "best-of") == (60, "_is_" in file.stem)
    assert config["env"] == ("Door-v0" if file.stem.startswith("door") else "PlaygroundText-v0")
    assert config["max_steps"] == (1 if config["env"] == "Door-v0" else 2 if wants_model else 30)
    if config["experimenter"] == "curiosity":
        assert file.stem.endswith(f"_{options['experimenter']['reward']}")
        assert options["experimenter"]["clip"] == 0.2
    if wants_model:
        assert config["statistician"] == "litellm/hosted_vllm/microsoft/Phi-3-mini-4k-instruct"


def test_readme_names_each_file() -> None:
    text = (ROOT / "examples" / "worldllm" / "README.md").read_text()
    assert {file.name for file in FILES} == set(re.findall(r"`(\w+\.toml)`", text)) != set()
