"""GIF-MCTS: Monte Carlo tree search over generate, improve and fix (Dainese et al., 2024)."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Add the strategy `gif-mcts`."""
    return {"gif-mcts": "cwm_gif_mcts.strategy:GifMcts"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Make it the default strategy."""
    return {"strategy": "gif-mcts"}
