"""`cwm train` with networks: resuming after crashes, given world models, wrong states."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import cwm_cli  # noqa: E402
from cwm_neural.training.runs import TrainRun  # noqa: E402
from training_runs import Crash, journal_lines  # noqa: E402

pytestmark = pytest.mark.slow
torch.set_num_threads(1)

SMALLEST = {
    "training.every": 40,
    "training.warm_up": 40,
    "training.tests": 1,
    "training.test_every": 2,
    "training.max_steps": 8,
}
PLANS = {"icem.budget": 12, "icem.iterations": 1, "icem.horizon": 3}
LEARNS = {"agent.starts": 4, "agent.horizon": 3, "agent.width": 8, "agent.updates": 0.1}


def train(folder: Path, agent: str, steps: int = 120, **more):
    """Train a small ensemble."""
    options = SMALLEST | {"model.ratio": 0.2} | (LEARNS if agent == "actor-critic" else PLANS)
    return cwm_cli.train(
        "CartPole-v1",
        model="ensemble",
        agent=agent,
        profile="tiny",
        steps=steps,
        options=options,
        device="cpu",
        run=folder,
        **more,
    )


@pytest.mark.parametrize("agent", ["actor-critic", pytest.param("planner", marks=pytest.mark.long)])
def test_networks_continue_identically_after_crashes(agent, tmp_path, monkeypatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, agent)
    write = TrainRun.append

    for written in range(3, len(journal_lines(whole)), 3):

        def crash_at(run, *records, written=written):
            write(run, *records)
            if len(journal_lines(run.folder)) == written:
                raise Crash

        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(TrainRun, "append", crash_at)
            train(broken, agent)
    train(broken, agent)
    assert journal_lines(broken) == journal_lines(whole)
    for name in ("best", "last"):
        (one, acts), (other, does) = (
            TrainRun.load(each).restore({"checkpoint.checkpoint": name}) for each in (whole, broken)
        )
        rows = TrainRun.load(whole).dataset()
        found = [each.model.predict(rows, seed=1).columns for each in (one, other)]
        for column in found[0]:
            assert (found[0][column] == found[1][column]).all(), column
        assert acts.parameters == does.parameters


def test_agent_learns_in_an_earlier_model(tmp_path) -> None:
    first = train(tmp_path / "first", "planner", steps=40)
    options = SMALLEST | LEARNS
    found = cwm_cli.train(
        "CartPole-v1",
        world=first.run,
        agent="actor-critic",
        steps=40,
        options=options,
        run=tmp_path / "second",
    )
    assert "ensemble" not in found.parameters
    assert found.tests[-1].lengths[0] <= 8
    assert TrainRun.load(found.run).header.world == str(first.run)


def test_states_of_other_networks_are_refused_in_one_line(tmp_path) -> None:
    train(tmp_path, "actor-critic", steps=40)
    run = TrainRun.load(tmp_path)
    saved = sorted(tmp_path.glob("checkpoints/*/*/*.pt"))
    assert len(saved) == 2
    for file in saved:
        content = file.read_bytes()
        state = torch.load(file, weights_only=True)
        networks = state["networks" if "networks" in state else "network"]
        name = next(iter(networks))
        networks[name] = networks[name].new_zeros(1, 2, 3)
        torch.save(state, file)
        with pytest.raises(cwm_cli.CwmError, match=f"another version.*{name}") as refused:
            run.restore()
        assert len(str(refused.value).splitlines()) == 1
        file.write_bytes(content)
    run.restore()
    with pytest.raises(cwm_cli.CwmError, match="device cuda:99 is not available"):
        run.restore({"checkpoint.device": "cuda:99"})
