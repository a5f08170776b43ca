"""Programs as plain arithmetic: what a step computes, found by running it once with symbols."""

from cwm_cli.planning.traced.model import Traced
from cwm_cli.planning.traced.plain import plain
from cwm_cli.planning.traced.tracing import Trace, traced
from cwm_cli.planning.traced.verification import verified_traced

__all__ = ["Trace", "Traced", "plain", "traced", "verified_traced"]
