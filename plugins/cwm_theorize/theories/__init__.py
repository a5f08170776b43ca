"""Rules in words: a grammar that proposes them, their exact reading, and searches among them."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer who reads rules exactly, and who draws them from a grammar."""
    return {
        "grammar": "cwm_theorize.theories.grammar:Grammar",
        "symbolic": "cwm_theorize.theories.symbolic:Symbolic",
    }


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Need no model where none is named: draw rules, and weigh them by reading them."""
    return {"method": "metropolis", "statistician": "symbolic", "theorist": "grammar"}


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Offer searches by likelihood."""
    return {
        "metropolis": "cwm_theorize.theories.strategies:Metropolis",
        "importance": "cwm_theorize.theories.strategies:Importance",
        "best-of": "cwm_theorize.theories.strategies:BestOf",
    }
