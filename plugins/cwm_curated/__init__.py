"""Policies for `cwm collect` that plan informative episodes."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_policies() -> Mapping[str, str]:
    """Add `curated`, the default of `cwm collect`, and `planner`."""
    return {
        "planner": "cwm_curated.policies:PlannerPolicy",
        "curated": "cwm_curated.policies:CuratedPolicy",
    }
