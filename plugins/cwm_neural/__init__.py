"""Neural world models beside programs: learned from rows or pixels, by gradient descent (torch)."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_trainers() -> Mapping[str, str]:
    """Offer the kinds of world models that are trained."""
    return {
        "dreamer": "cwm_neural.dreamer:DreamerTrainer",
        "ensemble": "cwm_neural.ensemble:EnsembleTrainer",
        "ncp": "cwm_neural.ncp:NcpTrainer",
        "ncp-multi": "cwm_neural.ncp:NcpMultiTrainer",
        "transformer": "cwm_neural.transformer:TransformerTrainer",
    }


@hookimpl
def cwm_agents() -> Mapping[str, str]:
    """Offer the agents that learn in them."""
    return {
        "actor-critic": "cwm_neural.actor:ActorCriticTrainer",
        "cql": "cwm_neural.cql:CqlTrainer",
    }


@hookimpl
def cwm_learning_strategies() -> Mapping[str, str]:
    """Offer `ensemble`, which learns online by any of them."""
    return {"ensemble": "cwm_neural.learning:TrainedLearning"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Train the quickest kind where none is named."""
    return {"trainer": "ensemble"}
