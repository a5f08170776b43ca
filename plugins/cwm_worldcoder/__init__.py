"""WorldCoder (Tang et al., 2024): a search by Thompson sampling, and the agent that acts."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Offer the `worldcoder` strategy."""
    return {"worldcoder": "cwm_worldcoder.strategy:WorldCoder"}


@hookimpl
def cwm_learning_strategies() -> Mapping[str, str]:
    """Offer `worldcoder-agent`, which acts as well."""
    return {"worldcoder-agent": "cwm_worldcoder.agent:WorldCoderAgent"}
