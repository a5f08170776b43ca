"""Writer of a mechanism as a method of a program, and of its integrator as statements."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.terms import Term
from cwm_induction.mechanics.mechanism import HARD, SOFT, THICKNESS, Parameter
from cwm_induction.mechanics.motion import Mechanics
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import ProgramDraft, Statement, mentioned

_RUNGE_KUTTA = """a1 = {push}(q, v{u})
v2 = v + h / 2 * a1
a2 = {push}(q + h / 2 * v, v2{u})
v3 = v + h / 2 * a2
a3 = {push}(q + h / 2 * v2, v3{u})
v4 = v + h * a3
stage = q + h * v3
a4 = {push}(stage, v4{u})
q = q + h / 6 * (v + 2 * v2 + 2 * v3 + v4)
v = v + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)"""
_PUSH = f"""depth = np.clip(q[{{i}}], -{{end}}, {{end}}) - q[{{i}}]
share = min(abs(depth) / {THICKNESS}, 1)
bend = 2 * share**2 if share < 0.5 else 1 - 2 * (1 - share) ** 2
hard = {SOFT} + {HARD - SOFT:.2f} * bend
response = np.linalg.solve(mass, np.array([{{unit}}]))
push = {{stiffness}} * hard * depth - {{damping}} * v[{{i}}] - a[{{i}}]
push = push / (response[{{i}}] + {{give}} * (1 - hard) / hard)
a = a + (push if push * depth > 0 else 0.0) * response"""
_RULES = {
    "euler": "q, v = q + h * v, v + h * {push}(q, v{u})",
    "semi-implicit": "v = v + h * {push}(q, v{u})\nq = q + h * v",
    "runge-kutta": _RUNGE_KUTTA,
}

Summand = tuple[float, list[str]]
"""A weight, and the factors of the product."""


@dataclass(frozen=True)
class MechanicsText:
    """Writer of the constants, the method and the step statements of a mechanism."""

    mechanics: Mechanics
    program: ProgramDraft

    def write(self) -> None:
        """Add the code to the program; it assigns the next state to `q` and `v`."""
        self.program.methods.append(self._method())
        self.program.statements.append(self._advance())

    def next_of(self, name: str) -> str:
        """Return the expression of a variable's next value."""
        for index, (position, velocity) in enumerate(self.mechanics.joints):
            if name in (position.name, velocity.name):
                return f"q[{index}]" if name == position.name else f"v[{index}]"
        raise KeyError(name)

    @cached_property
    def _values(self) -> dict[Parameter, float]:
        """The nonzero parameters."""
        parameters, point = self.mechanics.form.parameters, self.mechanics.point.tolist()
        return {p: value for p, value in zip(parameters, point, strict=True) if value}

    @cached_property
    def _arguments(self) -> str:
        """The other arguments of the method: the variables of the inputs in the forces."""
        roots = {name for column in self.mechanics.inputs for name in mentioned(column.text)}
        pushed = any(parameter.kind == "push" for parameter in self._values)
        return "".join(f", {name}" for name in sorted(roots)) if pushed else ""

    def _advance(self) -> Statement:
        positions = ", ".join(joint.position.name for joint in self.mechanics.joints)
        velocities = ", ".join(joint.velocity.name for joint in self.mechanics.joints)
        time, scheme, _ = self.mechanics.stepping
        step = self.program.constant("TIME_STEP", literal(time))
        lines = [
            f"q = np.array([{positions}])",
            f"v = np.array([{velocities}])",
            f"h = {step}" + (f" / {scheme.parts}" if scheme.parts > 1 else ""),
            scheme.repeated(
                _RULES[scheme.rule].format(push="self.accelerations", u=self._arguments)
            ),
        ]
        return Statement("\n".join(lines), f"Integrate the mechanism: {scheme.words}.")

    def _method(self) -> str:
        """Write the method `accelerations`, which solves mass times acceleration = force."""
        joints = range(len(self.mechanics.joints))
        pairs = [(i, j) for i in joints for j in joints if i <= j]
        lines = [f"mass_{i}{j} = {self._mass(i, j)}" for i, j in pairs]
        lines += [f"force_{i} = {self._force(i)}" for i in joints]
        lines += _solution(len(joints)) if not self.mechanics.stepping.limits else self._limited()
        used = mentioned(" ".join(lines))
        unpack = [
            f"{variable.name} = {vector}[{index}]"
            for index, joint in enumerate(self.mechanics.joints)
            for vector, variable in zip("qv", joint, strict=True)
            if variable.name in used
        ]
        head = [f"def accelerations(self, q, v{self._arguments}):"]
        docstring = '"""Return the accelerations: solve mass * acceleration = force."""'
        return "\n".join(head + [f"    {line}" for line in [docstring, *unpack, *lines]])

    def _limited(self) -> list[str]:
        """Write the solution of the linear system and the effect of the limits."""
        joints = range(len(self.mechanics.joints))
        lines = [f"mass = {_matrix(len(joints))}", f"a = np.linalg.solve(mass, {_forces(joints)})"]
        for limit in self.mechanics.stepping.limits:
            i = limit.joint
            name = self.mechanics.joints[i].position.name.upper()
            comment = f"The limits of {name.lower()} act like damped springs."
            comment += " Both are assumed to be equal."
            end = self.program.constant(f"{name}_END", literal(float(limit.end)), comment)
            stiffness, damping, give = (
                self.program.constant(f"{name}_END_{word.upper()}", literal(getattr(limit, word)))
                for word in ("stiffness", "damping", "give")
            )
            lines += _PUSH.format(
                i=i,
                end=end,
                stiffness=stiffness,
                damping=damping,
                give=give,
                unit=", ".join("1.0" if j == i else "0.0" for j in joints),
            ).splitlines()
        return [*lines, "return a"]

    def _mass(self, i: int, j: int) -> str:
        summands = []
        for k in range(len(self.mechanics.form.waves)):
            parameter = Parameter("mass", (k, i, j))
            if parameter in self._values:
                factor = [f"np.{self._function(k)}({self._phase(k)})"] if k else []
                summands.append((1.0, [self._name(parameter), *factor]))
        return _sum_text(summands)

    def _force(self, i: int) -> str:
        return _sum_text([*self._simple_forces(i), *self._potential(i), *self._centrifugal(i)])

    def _simple_forces(self, i: int) -> Iterator[Summand]:
        """Yield offset, damping, spring and input forces of joint i."""
        position, velocity = self.mechanics.joints[i]
        for parameter in self._values:
            if parameter.place[0] != i:
                continue
            name = self._name(parameter)
            match parameter.kind:
                case "offset":
                    yield 1.0, [name]
                case "damping":
                    yield -1.0, [name, velocity.name]
                case "spring":
                    yield -1.0, [name, position.name]
                case "push":
                    yield 1.0, [name, self.mechanics.inputs[parameter.place[1]].text]

    def _potential(self, i: int) -> Iterator[Summand]:
        for parameter in self._values:
            if parameter.kind == "potential":
                sign, slope = self._falling(parameter.place[0])
                turns = float(self.mechanics.form.waves[parameter.place[0], i])
                if turns:
                    yield sign * turns, [self._name(parameter), slope]

    def _centrifugal(self, i: int) -> Iterator[Summand]:
        """Yield the centrifugal forces on joint i, which result from variable masses."""
        form = self.mechanics.form
        for parameter in self._values:
            if parameter.kind != "mass" or parameter.place[0] == 0:
                continue
            k, a, b = parameter.place
            sign, slope = self._falling(k)
            products: dict[tuple[int, int], float] = {}
            for m, n in {(a, b), (b, a)}:
                for c in range(form.coordinates) if m == i else ():
                    key = (min(c, n), max(c, n))
                    products[key] = products.get(key, 0.0) + float(form.waves[k, c])
                key = (a, b)
                products[key] = products.get(key, 0.0) - 0.5 * float(form.waves[k, i])
            for (c, d), weight in products.items():
                if weight:
                    yield sign * weight, [self._name(parameter), *self._speeds(c, d), slope]

    def _function(self, k: int) -> str:
        return "sin" if self.mechanics.form.shifts[k] else "cos"

    def _falling(self, k: int) -> tuple[float, str]:
        """Return the negative derivative of a wave: its sign, and its function."""
        if self._function(k) == "cos":
            return 1.0, f"np.sin({self._phase(k)})"
        return -1.0, f"np.cos({self._phase(k)})"

    def _speeds(self, a: int, b: int) -> list[str]:
        names = [joint.velocity.name for joint in self.mechanics.joints]
        return [f"{names[a]}**2"] if a == b else [names[a], names[b]]

    def _phase(self, k: int) -> str:
        names = [joint.position.name for joint in self.mechanics.joints]
        return phase_text(self.mechanics.form.waves[k], names)

    def _name(self, parameter: Parameter) -> str:
        """Return the constant of a parameter, named after its joints and its wave."""
        kind, place = parameter
        names = [joint.position.name.upper() for joint in self.mechanics.joints]
        owners = {"mass": place[1:], "potential": ()}.get(kind, place[:1])
        parts = [kind.upper(), *(names[joint] for joint in dict.fromkeys(owners))]
        if kind == "potential" or (kind == "mass" and place[0]):
            parts += [self._function(place[0]).upper(), _identifier(self._phase(place[0]))]
        elif kind == "push" and len(self.mechanics.inputs) > 1:
            parts.append(str(place[1]))
        unit = parameter == self.mechanics.form.parameters[self.mechanics.form.unit]
        comment = "Set to 1: the data determine only ratios of masses and forces." if unit else ""
        return self.program.constant("_".join(parts), literal(self._values[parameter]), comment)


def phase_text(factors: Iterable[float], names: Sequence[str]) -> str:
    """Write a combination of angles."""
    parts = [(float(f), [name]) for f, name in zip(factors, names, strict=True) if f]
    return _sum_text(parts).replace(".0 *", " *")


def _sum_text(summands: Iterable[Summand]) -> str:
    parts = [(Term(" * ".join(factors), np.zeros(0), 0.0), size) for size, factors in summands]
    return Formula(tuple(term for term, _ in parts), tuple(size for _, size in parts)).text()


def _identifier(phase: str) -> str:
    """Convert a combination of angles to a part of a constant's name."""
    words = phase.replace(" - ", "_MINUS_").replace(" + ", "_PLUS_").replace(" * ", "_TIMES_")
    return words.replace("-", "MINUS_").upper()


def _solution(joints: int) -> list[str]:
    """Write the solution of the linear system."""
    if joints == 1:
        return ["return np.array([force_0 / mass_00])"]
    if joints == 2:
        return [
            "determinant = mass_00 * mass_11 - mass_01**2",
            "acceleration_0 = (mass_11 * force_0 - mass_01 * force_1) / determinant",
            "acceleration_1 = (mass_00 * force_1 - mass_01 * force_0) / determinant",
            "return np.array([acceleration_0, acceleration_1])",
        ]
    return [f"return np.linalg.solve({_matrix(joints)}, {_forces(range(joints))})"]


def _matrix(joints: int) -> str:
    rows = [", ".join(f"mass_{min(i, j)}{max(i, j)}" for j in range(joints)) for i in range(joints)]
    return "np.array([" + ", ".join(f"[{row}]" for row in rows) + "])"


def _forces(joints: Sequence[int]) -> str:
    return "np.array([" + ", ".join(f"force_{i}" for i in joints) + "])"
