"""Neural world models, trained on rows or images by gradient descent (torch): `cwm train`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl
from cwm_cli.hookspecs import ExtensionPoint

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_extension_points() -> Mapping[str, ExtensionPoint]:
    """Add the extension points of `cwm train --model` and `--agent`."""
    return {
        "trainer": ExtensionPoint("cwm_trainers", "cwm_neural.training.trainer:Trainer", True),
        "agent": ExtensionPoint("cwm_agents", "cwm_neural.training.trainer:AgentTrainer", True),
    }


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Add the Python function `cwm.train`."""
    return {
        "train": "cwm_neural.training.train:train",
    }


@hookimpl
def cwm_run_kinds() -> Mapping[str, str]:
    """Add the run kind of `cwm train`."""
    return {
        "train": "cwm_neural.training.runs:TrainRun",
    }


@hookimpl
def cwm_option_groups() -> Mapping[str, str]:
    """Add the options `training.KEY` and `checkpoint.KEY`."""
    return {
        "training": "cwm_neural.training.train:Schedule",
        "checkpoint": "cwm_neural.training.runs:CheckpointChoice",
    }


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add the command `cwm train`."""
    from cwm_neural.command import train

    app.command("train")(api.guarded(train))


@hookimpl
def cwm_trainers() -> Mapping[str, str]:
    """Add the kinds of world models."""
    return {
        "dummy": "cwm_neural.training.acting:DummyTrainer",
        "dreamer": "cwm_neural.dreamer:DreamerTrainer",
        "ensemble": "cwm_neural.ensemble:EnsembleTrainer",
        "ncp": "cwm_neural.ncp:NcpTrainer",
        "ncp-multi": "cwm_neural.ncp:NcpMultiTrainer",
        "transformer": "cwm_neural.transformer:TransformerTrainer",
    }


@hookimpl
def cwm_agents() -> Mapping[str, str]:
    """Add the kinds of agents."""
    return {
        "actor-critic": "cwm_neural.actor:ActorCriticTrainer",
        "planner": "cwm_neural.training.acting:PlannerTrainer",
        "random": "cwm_neural.training.acting:RandomTrainer",
        "cql": "cwm_neural.cql:CqlTrainer",
    }


@hookimpl
def cwm_learning_strategies() -> Mapping[str, str]:
    """Add the learning strategy `ensemble` of `cwm learn`."""
    return {"ensemble": "cwm_neural.learning:TrainedLearning"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Set the default kind of world model, which is the fastest one."""
    return {"trainer": "ensemble"}


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Add examples for the conformance tests."""
    return {
        "trainer dreamer": "cwm_neural.testing.examples:dreamer",
        "trainer ncp": "cwm_neural.testing.examples:ncp",
        "trainer ncp-multi": "cwm_neural.testing.examples:ncp_multi",
        "trainer transformer": "cwm_neural.testing.examples:transformer",
        "learning strategy ensemble": "cwm_neural.testing.examples:ensemble_learning",
    }
