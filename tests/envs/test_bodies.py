"""Bodies that a user gives: MJCF files, and the models of environments."""

import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.envs.bodies import OWN_MODEL, Body, body_of, read_body
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment

mujoco = pytest.importorskip("mujoco")

BODY = """<mujoco>
  <asset><texture name="t" type="2d" builtin="flat" width="9" height="9"/></asset>
  <worldbody>
    <light pos="0 0 3"/>
    <body><joint name="j"/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="j"/></actuator>
</mujoco>"""


def box(size):
    return Space("box", "float64", (size,), (-1.0,) * size, (1.0,) * size)


def test_a_file_is_read_without_its_looks(tmp_path):
    file = tmp_path / "one.xml"
    file.write_text(BODY)
    body = read_body(file)
    assert body.origin == "one.xml"
    assert "light" not in body.xml and "texture" not in body.xml
    assert mujoco.MjModel.from_xml_string(body.xml).njnt == 1
    body.check(box(2), box(1))


def test_warnings_of_mujoco_create_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "one.xml"
    file.write_text(BODY.replace("<asset>", '<compiler settotalmass="9"/><asset>'))
    read_body(file)
    assert list(tmp_path.iterdir()) == [file]


def test_included_files_become_part_of_the_text(tmp_path):
    (tmp_path / "inner.xml").write_text(BODY)
    file = tmp_path / "outer.xml"
    file.write_text('<mujoco><include file="inner.xml"/></mujoco>')
    xml = read_body(file).xml
    assert "include" not in xml
    assert mujoco.MjModel.from_xml_string(xml).nu == 1


def test_faulty_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(CwmError, match=r"missing\.xml"):
        read_body(tmp_path / "missing.xml")
    file = tmp_path / "broken.xml"
    file.write_text("<mujoco><worldbody></mujoco>")
    with pytest.raises(CwmError, match="is no valid MuJoCo model") as raised:
        read_body(file)
    assert "\n" not in str(raised.value)


def test_a_body_that_does_not_fit_the_data_is_refused():
    body = Body(BODY, "one.xml")
    with pytest.raises(
        CwmError, match=r"actuators of the body \(1\) is not the size of an action \(3\)"
    ):
        body.check(box(2), box(3))
    with pytest.raises(CwmError, match="needs actions that are flat arrays of numbers"):
        body.check(box(2), Space("discrete", low=(0,), high=(1,)))
    with pytest.raises(CwmError, match="the body has no joints"):
        Body("<mujoco/>", "empty.xml").check(box(2), box(1))


@pytest.mark.parametrize("shift", [None, 1])
def test_the_model_of_an_environment_has_its_changed_numbers(shift):
    made = environment("HalfCheetah-v5").make(**({} if shift is None else {"shift": shift}))
    body = body_of(made, "HalfCheetah-v5")
    model, own = mujoco.MjModel.from_xml_string(body.xml), made.unwrapped.model
    made.close()
    assert body.origin == OWN_MODEL
    assert np.allclose(model.body_mass, own.body_mass, rtol=1e-5)
    assert np.allclose(model.actuator_gear, own.actuator_gear, rtol=1e-5)
    assert model.opt.timestep == pytest.approx(own.opt.timestep)


def test_an_environment_without_a_model_is_refused():
    made = environment("CartPole-v1").make()
    with pytest.raises(CwmError, match="CartPole-v1 has no MuJoCo model"):
        body_of(made, "CartPole-v1")
    made.close()
