"""The text of a program that simulates a body with MuJoCo."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice, pairwise

from cwm_induction.bodies.layout import PositionSource, StateLayout
from cwm_induction.bodies.mechanism import INTEGRATORS, BodySimulation, Timing
from cwm_induction.bodies.payoff import EndCondition, FittedReward
from cwm_induction.bodies.readings import ComponentReading, Point, points_of
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
        layout: The state in the observation.
        timing: Frame skip and integrator.
        bounds: Bound of each clipped component, else infinity.
        remembers: Whether the program has a memory.
        readings: The other components; components without a reading do not change.
        reward: The terms of the reward.
        ends: The conditions that end an episode.
        state_right: Share of rows whose state is predicted.
        right: Share of rows whose state, reading and reward are predicted.
        comment: Comment lines at the beginning, without the marks.
    """

    mechanism: BodySimulation
    layout: StateLayout
    timing: Timing
    bounds: tuple[float, ...]
    remembers: bool
    readings: dict[int, ComponentReading] = field(default_factory=dict)
    reward: FittedReward = field(default_factory=FittedReward)
    ends: tuple[EndCondition, ...] = ()
    state_right: float = 0.0
    right: float = 0.0
    comment: str = ""


def write_program(found: BodyFindings) -> str:
    """Return the text of the program."""
    model, timing = found.mechanism.model, found.timing
    terms = found.reward.terms
    numbers = {each.name: abs(each.weight) for each in terms}
    numbers |= {limit: each.threshold for limit, each in _limits(found.ends)}
    listed = "".join(f'        "{name}": {literal(value)},\n' for name, value in numbers.items())
    others = [name for name in INTEGRATORS if name not in (timing.integrator, "implicit")]
    skips = [timing.frame_skip, *(s for s in (timing.frame_skip - 1, timing.frame_skip + 1) if s)]
    before = dict.fromkeys(each.before for each in terms if each.before)
    needs_forces = any(r.field in ("cfrc_ext", "cinert", "cvel") for r in found.readings.values())
    needs_forces |= any("cfrc_ext" in each.code for each in terms)
    step = ["mujoco.mj_rnePostConstraint(self.model, data)"] if needs_forces else []
    step += list(_step_lines(found))
    written = _PROGRAM.format(
        comment="".join(f"# {line}\n" for line in found.comment.splitlines()),
        skip=timing.frame_skip,
        timestep=f"{model.opt.timestep:g}",
        words=_describe(found),
        integrators=_listed([timing.integrator, *others]),
        skips=skips,
        parameters=f"{{\n{listed}    }}" if listed else "{}",
        methods=_methods(found),
        before=_indented(before),
        step=_indented(step),
    )
    head, class_word, body = written.partition("class Environment")
    xml = (
        _with_small_memory(found.mechanism)
        .strip()
        .replace("\\", "\\\\")
        .replace('"""', '\\"\\"\\"')
    )
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


def _methods(found: BodyFindings) -> str:
    """Return the methods that set the state."""
    lines = list(_state_lines(found))
    if _unread(found):
        lines.append("self.observation = observation")
    # Some rewards need places of bodies before the step.
    needs_places = any(
        "xpos" in each.before or "xipos" in each.before for each in found.reward.terms
    )
    if not found.remembers:
        prepare = ["mujoco.mj_kinematics(self.model, data)"] if needs_places else []
        return _PLAIN.format(state=_indented(lines), prepare=_indented(prepare))
    saved, restore = "state", []
    if needs_places:
        saved = "[state, self.data.xpos.copy(), self.data.xipos.copy()]"
        restore.append("state, self.data.xpos[:], self.data.xipos[:] = state")
    return _MEMORY.format(state=_indented(lines), saved=saved, restore=_indented(restore))


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)


def _listed(words: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _limits(ends: tuple[EndCondition, ...]) -> list[tuple[str, EndCondition]]:
    """Return the conditions with the names of their thresholds, each name once."""
    named: dict[str, EndCondition] = {}
    for each in ends:
        name = f"{'max' if each.is_above else 'min'}_{each.name}"
        free = (f"{name}_{n}" if n else name for n in count())
        named[next(each for each in free if each not in named)] = each
    return list(named.items())


def _step_lines(found: BodyFindings) -> Iterator[str]:
    """Yield the lines after the simulation."""
    conditions = [
        f'{each.code} {">" if each.is_above else "<"} numbers["{name}"]'
        for name, each in _limits(found.ends)
    ]
    yield f"ends = bool({' or '.join(conditions)})" if conditions else "ends = False"
    first = True
    for each in found.reward.terms:
        code = f'numbers["{each.name}"]'
        code += "" if each.code == "1.0" else f" * {each.code}"
        sign = "-" if each.weight < 0 else ""
        yield f"reward = {sign}{code}" if first else f"reward {sign or '+'}= {code}"
        first = False
    if first:
        yield "reward = 0.0"
    parts = list(_observation_parts(found))
    if len(parts) == 1:
        yield f"observation = np.array({parts[0]})"
    else:
        yield f"observation = np.concatenate([{', '.join(parts)}])"
    if _unread(found):
        yield "self.observation = observation"


def _unread(found: BodyFindings) -> list[int]:
    """Return the components that neither the state nor a reading explains."""
    return [
        c for c in range(len(found.bounds)) if c not in found.layout.used | found.readings.keys()
    ]


def _state_lines(found: BodyFindings) -> Iterator[str]:
    """Yield the statements that set the state from an observation."""
    layout, size = found.layout, len(found.bounds)
    numbers = [(i, s.first) for i, s in enumerate(layout.positions) if s and s.cosine is None]
    for start, first, length in _runs(numbers):
        target = _slice(start, length, found.mechanism.model.nq)
        yield f"data.qpos[{target}] = observation[{_slice(first, length, size)}]"
    circles = [(i, s) for i, s in enumerate(layout.positions) if s and s.cosine is not None]
    for start, pair, length in _circle_runs(circles):
        target = _slice(start, length, found.mechanism.model.nq)
        sine, cosine = (_slice(part or 0, length, size) for part in pair)
        angles = f"np.arctan2(observation[{sine}], observation[{cosine}])"
        if not found.remembers:
            yield f"data.qpos[{target}] = {angles}"
            continue
        # Sine and cosine do not show full turns.
        yield f"turn = {angles} - data.qpos[{target}]"
        yield f"data.qpos[{target}] += np.remainder(turn + np.pi, 2 * np.pi) - np.pi"
    speeds = [(i, c) for i, c in enumerate(layout.velocities) if c is not None]
    for start, first, length in _runs(speeds):
        target = f"data.qvel[{_slice(start, length, found.mechanism.model.nv)}]"
        source = f"observation[{_slice(first, length, size)}]"
        bound = found.bounds[first]
        if not found.remembers or not math.isfinite(bound):
            yield f"{target} = {source}"
            continue
        # A velocity beyond its bound shows only its sign.
        whole = target.replace("[:]", "")
        yield f"seen = {source}"
        yield f"hidden = (np.abs(seen) >= {bound:g}) & ({whole} * seen >= {bound**2:g})"
        yield f"{target} = np.where(hidden, {whole}, seen)"


def _runs(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield start, first component and length of runs of pairs that increase by one."""
    start = 0
    for place in range(1, len(pairs) + 1):
        last = place == len(pairs)
        if last or (
            pairs[place][0] - pairs[place - 1][0],
            pairs[place][1] - pairs[place - 1][1],
        ) != (1, 1):
            if place > start:
                yield (*pairs[start], place - start)
            start = place


def _circle_runs(
    circles: list[tuple[int, PositionSource]],
) -> Iterator[tuple[int, PositionSource, int]]:
    numbers = [(i, source.first) for i, source in circles]
    by_index = dict(circles)
    for start, _, length in _runs(numbers):
        chosen = [by_index[i] for i in range(start, start + length)]
        steps = {(b.cosine or 0) - (a.cosine or 0) for a, b in pairwise(chosen)}
        if steps <= {1}:
            yield start, chosen[0], length
        else:
            yield from ((start + n, source, 1) for n, source in enumerate(chosen))


def _slice(start: int, length: int, size: int) -> str:
    """Return a slice, ":" for all elements."""
    if length == size:
        return ":"
    return f"{start or ''}:{start + length if start + length < size else ''}"


@dataclass(frozen=True)
class _Part:
    """A component of the observation: an element of an array, or a function of an element."""

    form: str
    array: str
    index: int
    size: int


def _observation_parts(found: BodyFindings) -> Iterator[str]:
    """Yield expressions whose concatenation is the observation."""
    parts = [_part(found, component) for component in range(len(found.bounds))]
    place = 0
    while place < len(parts):
        first, length = parts[place], 1
        following = islice(parts, place + 1, None)
        for each in following:
            joined = (each.form, each.array) == (first.form, first.array)
            if not joined or each.index != first.index + length:
                break
            length += 1
        sliced = _slice(first.index, length, first.size)
        array = first.array if sliced == ":" else f"{first.array}[{sliced}]"
        yield first.form.format(array)
        place += length


def _part(found: BodyFindings, component: int) -> _Part:
    layout, model = found.layout, found.mechanism.model
    bound, size = found.bounds[component], len(found.bounds)
    form = f"np.clip({{}}, -{bound:g}, {bound:g})" if math.isfinite(bound) else "{}"
    for index, source in enumerate(layout.positions):
        if source and component == source.first:
            shape = "{}" if source.cosine is None else "np.sin({})"
            return _Part(shape, "data.qpos", index, model.nq)
        if source and component == source.cosine:
            return _Part("np.cos({})", "data.qpos", index, model.nq)
    if component in layout.velocities:
        return _Part(form, "data.qvel", layout.velocities.index(component), model.nv)
    reading = found.readings.get(component)
    if reading is None:
        return _Part("{}", "self.observation", component, size)
    if reading.field == "constant":
        return _Part(f"np.full(1, {literal(reading.value)})", "", 2 * component, 0)
    return _read_part(found, reading, form)


def _read_part(found: BodyFindings, reading: ComponentReading, form: str) -> _Part:
    if reading.points:
        one, other = reading.points
        return _Part(form, f"({one.code} - {other.code})", reading.index, 3)
    if reading.field in ("xpos", "site_xpos"):
        index, axis = divmod(reading.index, 3)
        known = [p for p in points_of(found.mechanism) if p.field == reading.field]
        point = next((p for p in known if p.index == index), Point("body", index, ""))
        return _Part(form, point.code, axis, 3)
    shape = getattr(found.mechanism.data, reading.field).shape
    array = f"data.{reading.field}" + (".ravel()" if len(shape) > 1 else "")
    return _Part(form, array, reading.index, math.prod(shape))


def _describe(found: BodyFindings) -> str:
    """Describe the observation and the end in one paragraph."""
    shown = [p for p in _observation_parts(found)]
    listed = ", ".join(part.replace("data.", "") for part in shown[:6])
    words = [f"The observation is {listed}{' and more' if len(shown) > 6 else ''}."]
    if found.ends:
        sides = [
            f"{each.name} is {'above' if each.is_above else 'below'} {literal(each.threshold)}"
            for each in found.ends
        ]
        words.append(f"An episode ends if {' or '.join(sides)}.")
    return " ".join(words).replace('"', "'")
