"""WorldCoder (Tang et al., 2024): a strategy of program search, and an acting agent."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Register the `worldcoder` strategy."""
    return {"worldcoder": "cwm_worldcoder.strategy:WorldCoder"}


@hookimpl
def cwm_learning_strategies() -> Mapping[str, str]:
    """Register the `worldcoder-agent` strategy of `cwm learn`."""
    return {"worldcoder-agent": "cwm_worldcoder.agent:WorldCoderAgent"}
