"""Rules in words: a grammar that proposes them, an exact reader, and search strategies."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Register the exact reader of rules, and the grammar that proposes them."""
    return {
        "grammar": "cwm_theorize.theories.grammar:Grammar",
        "symbolic": "cwm_theorize.theories.symbolic:Symbolic",
    }


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Register defaults that need no language model: the grammar and the exact reader."""
    return {"method": "metropolis", "statistician": "symbolic", "theorist": "grammar"}


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Register search strategies that use likelihoods."""
    return {
        "metropolis": "cwm_theorize.theories.strategies:Metropolis",
        "importance": "cwm_theorize.theories.strategies:Importance",
        "best-of": "cwm_theorize.theories.strategies:BestOf",
    }
