"""Record episodes of an environment, and keep the default recordings.

`requests` says what is asked for, `policies` how each episode is played, `aims` what its
plans are made for, `recording` plays and records, and `keeping` finds what was recorded.
"""

from cwm_cli.agents.collection.keeping import default_dataset, shipped_name
from cwm_cli.agents.collection.policies import POLICIES
from cwm_cli.agents.collection.recording import Progress, collect
from cwm_cli.agents.collection.requests import (
    COLLECTOR_VERSION,
    DEFAULTS,
    Episode,
    Options,
    request,
)

__all__ = [
    "COLLECTOR_VERSION",
    "DEFAULTS",
    "POLICIES",
    "Episode",
    "Options",
    "Progress",
    "collect",
    "default_dataset",
    "request",
    "shipped_name",
]
