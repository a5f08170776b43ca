"""The session of an agent: contracts, disclosed episodes, and pages of rows."""

import numpy as np
import pytest

from cwm_cli.commands.synthesize import prepared_job
from cwm_cli.errors import CwmError
from cwm_mcp.answers import json_value
from cwm_mcp.serving import submission_choices
from cwm_mcp.session import AgentSession
from cwm_mcp.submissions import Submission

UNCHANGED = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, -1.0, False
"""

CERTAIN = (
    UNCHANGED
    + """
    def outcomes(self, action):
        return [(1.0, self.observation, -1.0, False)]
"""
)


@pytest.fixture
def session(tmp_path, request):
    choices = submission_choices(**getattr(request, "param", {}))
    with prepared_job(choices, env="CliffWalking-v1", run=tmp_path / "run") as job:
        yield AgentSession(job, max_episodes=1)


@pytest.mark.slow
def test_client_may_ask_for_another_contract_once(session):
    first = session.submit(Submission(UNCHANGED, contract="chance"))
    assert first.contract == "chance"
    assert any(note.startswith("contract changed from plain to chance") for note in first.notes)
    second = session.submit(Submission(CERTAIN, parent=0))
    assert second.node.parent == 0
    assert 0 <= second.node.score < 1
    back = session.submit(Submission(CERTAIN + "# again", contract="plain"))
    assert back.contract == "chance"
    assert "the contract stays chance" in back.notes[-1]
    assert [node.action for node in session.job.search.nodes] == ["generate", "improve", "generate"]


@pytest.mark.slow
@pytest.mark.parametrize("session", [{"contract": "plain"}], indirect=True)
def test_contract_of_the_user_stays(session):
    found = session.submit(Submission(UNCHANGED, contract="memory"))
    assert found.contract == "plain"
    assert "the user chose the contract" in found.notes[-1]


@pytest.mark.slow
def test_fenced_programs_and_backticks_inside_programs_are_kept(session):
    fenced = session.submit(Submission(f"```python\n{UNCHANGED}\n```"))
    quoted = UNCHANGED.replace("class", '"""\n```\nnot code\n```\n"""\n\n\nclass')
    plain = session.submit(Submission(quoted))
    assert fenced.node.score == plain.node.score > 0
    programs = [node.program.strip() for node in session.job.search.nodes]
    assert programs == [UNCHANGED.strip(), quoted.strip()]


@pytest.mark.slow
def test_repaired_program_is_a_fix_of_its_parent(session):
    broken = session.submit(Submission("class Environment:\n    pass"))
    assert broken.node.failure == "load_error"
    assert broken.diagnosis
    session.submit(Submission(UNCHANGED, parent=0))
    assert session.job.search.nodes[1].action == "fix"


def test_evidence_is_selected_and_paged(session):
    steps = session.evidence("steps", limit=5)
    assert len(steps.rows) == 5
    assert steps.total == session.describe().shown_rows
    assert "set `offset` to 5" in steps.note
    assert [row.row for row in session.evidence("steps", offset=5, limit=1).rows] == [5]
    assert session.evidence("steps", offset=10**12).rows == []
    rare = session.evidence("rewards", limit=100)
    assert {row.recorded.reward for row in rare.rows} == {-100.0}
    ends = session.evidence("ends")
    assert all(row.recorded.terminated for row in ends.rows)
    assert ends.total > 0
    moved = session.evidence("changes", component=0, limit=100)
    sizes = [abs(row.recorded.next_observation - row.observation) for row in moved.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    (one,) = session.evidence("steps", rows=[3]).rows
    assert one.row == 3
    episode = session.evidence("steps", episode=one.episode, limit=100)
    assert {row.episode for row in episode.rows} == {one.episode}
    ranges = session.evidence("ranges")
    assert (ranges.components[0].low, ranges.components[0].high) == (0.0, 47.0)
    with pytest.raises(CwmError, match="no component 7: choose 0 to 0"):
        session.evidence("changes", component=7)


def test_check_makes_no_node_and_finish_needs_one(session):
    found = session.check(UNCHANGED)
    assert found.rows == session.describe().shown_rows
    assert 0 < found.score < 1
    assert "transitions are wrong" in found.diagnosis
    assert session.describe().nodes == []
    with pytest.raises(CwmError, match="submit one before you finish"):
        session.finish()


@pytest.mark.slow
def test_unsuccessful_calibration_returns_no_program(session):
    session.submit(Submission(UNCHANGED))
    assert session.calibrate(0).program == ""


def test_values_of_spaces_become_json():
    value = {"a": (np.float32(0.5), np.array([1, 2])), "b": np.nan, 3: -np.inf}
    assert json_value(value) == {"a": [0.5, [1, 2]], "b": "nan", "3": "-inf"}
