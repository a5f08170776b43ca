"""Experimenters continue from a saved state as if they had never stopped."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cwm_cli.commands.policies import Stage
from cwm_cli.data.dataset import Transition
from cwm_cli.registry import find
from cwm_cli.search.contracts import Backend, ScoreRequest
from cwm_cli.testing.conftest import Material
from cwm_cli.testing.test_conformance import every, make, skip_if_unusable
from cwm_theorize.experimenters import Experimenter, PhaseContext, collect_phase
from cwm_theorize.testing.examples import statistician


class Terse(Backend):
    """A statistician that prefers short texts."""

    can_score = True

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Score texts by their lengths."""
        return [[-0.1 * len(request.text)] for request in requests]


@every("policy")
def test_experimenter_continues_from_its_saved_state(name: str, material: Material) -> None:
    if not issubclass(find("policy", name), Experimenter):
        pytest.skip("not an experimenter")
    with skip_if_unusable("pip install"):
        _continues(name, material)


def _continues(name: str, material: Material) -> None:
    brief = replace(statistician(), backend=Terse())
    view = brief.view
    stage = Stage(replace(material.spec, text=lambda env: view), {}, 3, 8)
    found = []
    for stopping in (False, True):
        experimenter, rows = make("policy", name, material), list[Transition]()
        for phase in range(3):
            if stopping:
                state, experimenter = experimenter.state(), make("policy", name, material)
            if stopping or phase == 0:
                experimenter.prepare(stage)
            if stopping and phase > 0:
                experimenter.restore(state)
            context = PhaseContext(phase, phase / 3, "Push.", "Wait.", "", view, brief)
            experimenter.begin_phase(context)
            added = collect_phase(stage, experimenter, 2, seed=3, first=100 * phase)
            experimenter.learn(context, added)
            rows += added
        found.append([(*row.observation.tolist(), row.action, row.episode) for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) > 0
