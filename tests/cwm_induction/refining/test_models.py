"""Constants of MuJoCo models in programs are found, replaced and fitted."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.program import ProgramModel
from cwm_induction.refining.calibration import Calibrate
from cwm_induction.refining.constants import (
    ConstantKind,
    find_constants,
    model_constants,
    replace_spans,
)
from folders import ROOT

RECALLED = ROOT / "benchmarks" / "recalled"

ARM = '''
import mujoco
import numpy as np

XML = """
<mujoco>
  <!-- an arm of length="9" -->
  <compiler angle="degree"/>
  <option timestep="{timestep}" gravity="0 0 {gravity}" integrator="%s"/>
  <visual><headlight ambient="0.5 0.5 0.5"/></visual>
  <default><geom type="capsule" contype="0" conaffinity="0" rgba="0.8 0.6 0.4 1"/></default>
  <worldbody>
    <body name="arm" pos="0 0 0.5">
      <joint name="hinge" axis="0 1 0" damping="{damping}" range="-{reach} {reach}"
             limited="true"/>
      <geom fromto="0 0 0 0 0 -0.6" size="0.05" density="1000"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear="{gear}" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""


class Environment:
    CHOICES = {{"integrator": {ways}}}

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(XML % self.CHOICES["integrator"][0])
        self.data = mujoco.MjData(self.model)

    def set_state(self, observation):
        self.data.qpos[:], self.data.qvel[:] = observation[:1], observation[1:]
        self.data.qacc_warmstart[:] = 0

    def step(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, 3)
        return np.concatenate([self.data.qpos, self.data.qvel]), 0.0, False
'''

WRITTEN = {"timestep": 0.01, "gravity": -9.81, "damping": 0.5, "reach": 100, "gear": 10}
TRUE = {"timestep": 0.01, "gravity": -8.1, "damping": 0.42, "reach": 115, "gear": 12.5}


def arm(ways='["Euler", "RK4"]', **numbers):
    return ARM.format(ways=ways, **numbers)


def test_flags_directions_zeros_and_visual_elements_are_no_constants():
    found = {each.name: each.value for each in find_constants(arm(**WRITTEN))}
    assert found == {
        "option.timestep": 0.01,
        "option.gravity[2]": -9.81,
        "arm.body.pos[2]": 0.5,
        "hinge.joint.damping": 0.5,
        "hinge.joint.range[0]": -100,
        "hinge.joint.range[1]": 100,
        "arm.geom.fromto[5]": -0.6,
        "arm.geom.size": 0.05,
        "arm.geom.density": 1000,
        "hinge.motor.gear": 10,
    }


def test_constants_of_a_model_are_replaced():
    program = arm(**WRITTEN)
    texts = []
    for each in find_constants(program):
        key = {"option.gravity[2]": "gravity", "hinge.motor.gear": "gear"}.get(each.name)
        value = TRUE[key] if key else each.value
        assert each.kind == ConstantKind.MODEL
        texts.append((each.span, each.text(value)))
    assert replace_spans(program, texts[1:2] + texts[-1:]) == arm(
        **WRITTEN | {"gravity": TRUE["gravity"], "gear": TRUE["gear"]}
    )


@pytest.mark.parametrize(
    "source",
    [
        """X = f'<mujoco><option timestep="{dt}" viscosity="0.3"/></mujoco>'""",
        """X = "<mujoco><option timestep=\\"%s\\" viscosity=\\"0.3\\"/></mujoco>" % dt""",
        """X = ("<mujoco>"\n  "<option timestep='%s' viscosity='0.3'/></mujoco>") % dt""",
    ],
)
def test_a_model_may_have_gaps_quotes_and_pieces(source):
    program = f"dt = '0.01'\n{source}"
    [each] = find_constants(program)
    assert (each.name, each.value) == ("option.viscosity", 0.3)
    made = {}
    exec(replace_spans(program, [(each.span, each.text(-2.5))]), made)
    assert made["X"].replace("'", '"') == (
        '<mujoco><option timestep="0.01" viscosity="-2.5"/></mujoco>'
    )


def test_equal_elements_have_different_names_and_incomplete_text_is_accepted():
    text = '<mujoco><body name="a"><geom size="1"/><geom size="2"/></body><geom size="3" <'
    assert [part.name for part in model_constants(text)] == ["a.geom.size", "a.geom 2.size"]
    assert not list(model_constants('</body></mujoco><geom size="abc"/><option'))


def test_constants_of_recalled_programs_have_correct_spans():
    for file in sorted(RECALLED.glob("[a-z]*.py")):
        program = file.read_text()
        found = [each for each in find_constants(program) if each.kind == ConstantKind.MODEL]
        assert len(found) > 12 or "<mujoco" not in program, file
        for each in found:
            assert float(program[slice(*each.span)].replace(" ", "")) == each.value, each
        assert len({each.name for each in found}) == len(found), file


@pytest.mark.slow
def test_a_model_is_fitted_with_its_limits_and_its_integrator():
    pytest.importorskip("mujoco")
    rng = np.random.default_rng(0)
    made = {}
    exec(arm('["RK4"]', **TRUE), made)
    truth, rows = made["Environment"](), []
    for episode in range(4):
        now = rng.uniform(-1, 1, 2)
        push = rng.choice((-1.0, 1.0))
        for _ in range(25):
            action = np.clip(push + rng.uniform(-1, 1, 1), -1, 1)
            truth.set_state(now)
            after, reward, _ = truth.step(action)
            rows.append(Transition(now, action, after, reward, False, episode=episode))
            now = after
    bounds = (-np.inf,) * 2, (np.inf,) * 2
    data = Dataset.of(
        rows,
        observation_space=Space("box", "float64", (2,), *bounds),
        action_space=Space("box", "float64", (1,), (-1.0,), (1.0,)),
    )
    with Sandbox(Limits(), tools=["mujoco"]) as sandbox:
        found = Calibrate(calibrate_seconds=60).fit(arm(**WRITTEN), data[data.fitted], sandbox)
        scored = evaluate(ProgramModel(found.program, sandbox), data, AccuracyMetric.of(data))
    assert scored.score.accuracy == 1.0, found.findings
    assert 'CHOICES = {"integrator": ["RK4", "Euler"]}' in found.program
    assert abs(find_constants(found.program)[1].value / TRUE["gravity"] - 1) < 0.5
