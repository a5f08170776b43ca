"""The text of a program that simulates a body with MuJoCo."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from cwm_induction.bodies.layout import ArrayElement, FittedLayout
from cwm_induction.bodies.mechanism import INTEGRATORS, BodySimulation
from cwm_induction.bodies.payoff import FittedReward
from cwm_induction.rules import Feature, Threshold, ThresholdRule
from cwm_induction.writing.finishing import broken
from cwm_induction.writing.rounding import literal

_PROGRAM = '''{comment}import mujoco
import numpy as np

class Environment:
    """A body in MuJoCo, simulated for {skip} steps of {timestep} s per action.

    {words}
    """

    CHOICES = {{"integrator": {integrators}, "frame_skip": {skips}}}
    PARAMETERS = {parameters}

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_string(BODY)
        integrator = "mjINT_" + self.CHOICES["integrator"][0].upper()
        self.model.opt.integrator = getattr(mujoco.mjtIntegrator, integrator)
        self.frame_skip = self.CHOICES["frame_skip"][0]
        self.seconds = self.frame_skip * self.model.opt.timestep
        self.data = mujoco.MjData(self.model)

{methods}
    def step(self, action):
        """Simulate the body and return observation, reward and end."""
        numbers, data = self.PARAMETERS, self.data
{before}        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, self.frame_skip)
{step}        return observation, float(reward), ends
'''

_PLAIN = '''    def set_state(self, observation):
        """Set the state of the body; hidden positions keep their default."""
        data = self.data
        data.qpos[:] = self.model.qpos0
        data.qvel[:] = 0.0
{state}        data.qacc_warmstart[:] = 0.0
{prepare}'''

_MEMORY = '''    def reset(self, observation):
        """Start an episode: hidden positions have their default."""
        mujoco.mj_resetData(self.model, self.data)
        self.correct(observation, 0.0)
        mujoco.mj_forward(self.model, self.data)

    def correct(self, observation, reward):
        """Set the visible part of the state, and keep the rest of the simulation."""
        data = self.data
{state}
    def save(self):
        """Return the state of the simulation as an array."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return {saved}

    def restore(self, state):
        """Set the simulation to a saved state."""
{restore}        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(self.model, self.data, state, kind)
'''

SPARE_MEMORY = 16
"""Memory of a simulation as a multiple of what the recorded steps use."""


@dataclass(frozen=True)
class BodyFindings:
    """The parts of a program.

    Attributes:
        mechanism: The body.
        found: The state in the observation, with its timing.
        bounds: Bound of each clipped component, else infinity.
        remembers: Whether the program has a memory.
        readings: The other components; components without a reading do not change.
        reward: The terms of the reward.
        ends: The rule that ends an episode.
        state_right: Share of rows whose state is predicted.
        right: Share of rows whose state, reading and reward are predicted.
    """

    mechanism: BodySimulation
    found: FittedLayout
    bounds: tuple[float, ...]
    remembers: bool
    readings: dict[int, ArrayElement] = field(default_factory=dict)
    reward: FittedReward = field(default_factory=FittedReward)
    ends: ThresholdRule = field(default_factory=ThresholdRule)
    state_right: float = 0.0
    right: float = 0.0

    @property
    def unread(self) -> bool:
        """Whether neither the state nor a reading explains some component."""
        return len({*self.found.layout.used, *self.readings}) < len(self.bounds)


def write_program(findings: BodyFindings, comment: str = "") -> str:
    """Return the text of the program, with a comment at the beginning."""
    mechanism, timing = findings.mechanism, findings.found.timing
    terms = findings.reward.terms
    numbers = {term.name: abs(weight) for term, weight in terms}
    numbers |= _condition(findings.ends)[1]
    listed = "".join(f'        "{name}": {literal(value)},\n' for name, value in numbers.items())
    others = [name for name in INTEGRATORS if name not in (timing.integrator, "implicit")]
    skips = [timing.frame_skip, *(s for s in (timing.frame_skip - 1, timing.frame_skip + 1) if s)]
    arrays = [reading.array for reading in findings.readings.values()]
    read = " ".join([*arrays, *(term.code for term, _ in terms)])
    forces = any(name in read for name in ("cfrc_ext", "cinert", "cvel"))
    step = ["mujoco.mj_rnePostConstraint(self.model, data)"] if forces else []
    written = _PROGRAM.format(
        comment="".join(f"# {line}\n" for line in comment.splitlines()),
        skip=timing.frame_skip,
        timestep=f"{mechanism.model.opt.timestep:g}",
        words=_describe(findings),
        integrators="[" + ", ".join(f'"{each}"' for each in [timing.integrator, *others]) + "]",
        skips=skips,
        parameters=f"{{\n{listed}    }}" if listed else "{}",
        methods=_methods(findings),
        before=_indented(dict.fromkeys(term.before for term, _ in terms if term.before)),
        step=_indented([*step, *_step_lines(findings)]),
    )
    head, class_word, body = written.partition("class Environment")
    xml = _with_small_memory(mechanism).strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'{head}BODY = """{xml}\n"""\n\n\n{broken(class_word + body)}'


def _with_small_memory(mechanism: BodySimulation) -> str:
    """Return the text of the body, with enough memory for its contacts.

    MuJoCo reserves 13 MB for each simulation by default, and checks of a program with memory create
    a simulation per episode.
    """
    before, end, after = mechanism.xml.rpartition("</mujoco>")
    if "<size" in mechanism.xml or not end:
        return mechanism.xml
    megabytes = 1 + mechanism.data.maxuse_arena * SPARE_MEMORY // 2**20
    return f'{before}  <size memory="{megabytes}M"/>\n{end}{after}'


def _methods(findings: BodyFindings) -> str:
    """Return the methods that set the state."""
    lines = list(_state_lines(findings))
    if findings.unread:
        lines.append("self.observation = observation")
    # Some rewards need places of bodies before the step.
    befores = " ".join(term.before for term, _ in findings.reward.terms)
    needs_places = "xpos" in befores or "xipos" in befores
    if not findings.remembers:
        prepare = ["mujoco.mj_kinematics(self.model, data)"] if needs_places else []
        return _PLAIN.format(state=_indented(lines), prepare=_indented(prepare))
    saved, restore = "state", []
    if needs_places:
        saved = "[state, self.data.xpos.copy(), self.data.xipos.copy()]"
        restore.append("state, self.data.xpos[:], self.data.xipos[:] = state")
    return _MEMORY.format(state=_indented(lines), saved=saved, restore=_indented(restore))


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)


def _condition(rule: ThresholdRule) -> tuple[str, dict[str, float]]:
    """Return the condition that ends an episode, and its thresholds by name."""
    limits: dict[str, float] = {}

    def name(feature: Feature, threshold: Threshold) -> str:
        free = (f"{feature.label}_limit{number or ''}" for number in count())
        own = next(
            each for each in free if limits.setdefault(each, threshold.value) == threshold.value
        )
        return f'numbers["{own}"]'

    return rule.text(name), limits


def _step_lines(findings: BodyFindings) -> Iterator[str]:
    """Yield the lines after the simulation."""
    condition, limits = _condition(findings.ends)
    yield f"ends = bool({condition})" if limits else f"ends = {condition}"
    if not findings.reward.terms:
        yield "reward = 0.0"
    for number, (term, weight) in enumerate(findings.reward.terms):
        code = f'numbers["{term.name}"]' + ("" if term.code == "1.0" else f" * {term.code}")
        sign = "-" if weight < 0 else ""
        yield f"reward {sign or '+'}= {code}" if number else f"reward = {sign}{code}"
    parts = list(_observation(findings))
    joined = f"concatenate([{', '.join(parts)}])" if len(parts) > 1 else f"array({parts[0]})"
    yield f"observation = np.{joined}"
    if findings.unread:
        yield "self.observation = observation"


def _state_lines(findings: BodyFindings) -> Iterator[str]:
    """Yield the statements that set the state from an observation."""
    layout, model = findings.found.layout, findings.mechanism.model

    def seen(components: Iterable[int]) -> str:
        return f"observation[{_index(list(components), len(findings.bounds))}]"

    def target(array: str, places: list[int], size: int) -> str:
        return f"data.{array}[{_index(places, size)}]"

    sources = [(i, s) for i, s in enumerate(layout.positions) if s is not None]
    plain = {i: source.first for i, source in sources if source.cosine is None}
    circles = {
        i: (source.first, source.cosine) for i, source in sources if source.cosine is not None
    }
    if plain:
        yield f"{target('qpos', [*plain], model.nq)} = {seen(plain.values())}"
    if circles:
        place = target("qpos", [*circles], model.nq)
        sines, cosines = (seen(components) for components in zip(*circles.values(), strict=True))
        angles = f"np.arctan2({sines}, {cosines})"
        if findings.remembers:
            # Sine and cosine do not show full turns.
            yield f"turn = {angles} - {place}"
            yield f"{place} += np.remainder(turn + np.pi, 2 * np.pi) - np.pi"
        else:
            yield f"{place} = {angles}"
    speeds = {
        i: component for i, component in enumerate(layout.velocities) if component is not None
    }
    if speeds:
        place, bound = target("qvel", [*speeds], model.nv), findings.bounds[layout.speeds[0]]
        if findings.remembers and math.isfinite(bound):
            # A velocity beyond its bound shows only its sign.
            whole = place.replace("[:]", "")
            yield f"seen = {seen(speeds.values())}"
            yield f"hidden = (np.abs(seen) >= {bound:g}) & ({whole} * seen >= {bound**2:g})"
            yield f"{place} = np.where(hidden, {whole}, seen)"
        else:
            yield f"{place} = {seen(speeds.values())}"


def _index(places: list[int], size: int) -> str:
    """Return the index of elements in an array: a slice, ":" for all, or a list."""
    start, stop = places[0], places[0] + len(places)
    if places != list(range(start, stop)):
        return str(places)
    return f"{start or ''}:{stop if stop < size else ''}"


class _Part(NamedTuple):
    """A component of the observation: a function of an element of an array."""

    form: str
    array: str
    place: int
    size: int


def _observation(findings: BodyFindings) -> Iterator[str]:
    """Yield expressions whose concatenation is the observation."""
    parts, place = _parts(findings), 0
    while place < len(parts):
        form, array, start, size = parts[place]
        length = 1
        while parts[place + length : place + length + 1] == [(form, array, start + length, size)]:
            length += 1
        index = _index(list(range(start, start + length)), size)
        yield form.format(array if index == ":" else f"{array}[{index}]")
        place += length


def _parts(findings: BodyFindings) -> list[_Part]:
    """Return the parts of all components; a component without explanation does not change."""
    layout, model = findings.found.layout, findings.mechanism.model
    size = len(findings.bounds)
    forms = [
        f"np.clip({{}}, -{bound:g}, {bound:g})" if math.isfinite(bound) else "{}"
        for bound in findings.bounds
    ]
    parts = {c: _Part("{}", "self.observation", c, size) for c in range(size)}
    parts |= {c: _Part(forms[c], *reading[:3]) for c, reading in findings.readings.items()}
    for index, source in enumerate(layout.positions):
        if source is not None and source.cosine is not None:
            parts[source.first] = _Part("np.sin({})", "data.qpos", index, model.nq)
            parts[source.cosine] = _Part("np.cos({})", "data.qpos", index, model.nq)
        elif source is not None:
            parts[source.first] = _Part("{}", "data.qpos", index, model.nq)
    for index, component in enumerate(layout.velocities):
        if component is not None:
            parts[component] = _Part(forms[component], "data.qvel", index, model.nv)
    return [parts[component] for component in range(size)]


def _describe(findings: BodyFindings) -> str:
    """Describe the observation and the end in one paragraph."""
    shown = list(_observation(findings))
    listed = ", ".join(part.replace("data.", "") for part in shown[:6])
    words = [f"The observation is {listed}{' and more' if len(shown) > 6 else ''}."]
    if not findings.ends.is_constant:
        words.append(f"An episode ends if {findings.ends.text().replace('data.', '')}.")
    return " ".join(words).replace('"', "'")
