"""Writing a vector field as a method of the program, and its integrator as statements."""

from cwm_induction.flows.fitting import Flow
from cwm_induction.writing.emission import Program, Statement, mentioned

_RUNGE_KUTTA = """k1 = {rates}
k2 = self.rates(state + k1 / {twice}{given})
k3 = self.rates(state + k2 / {twice}{given})
k4 = self.rates(state + k3{over}{given})
state = state + (k1 + 2 * k2 + 2 * k3 + k4) / {six}"""
_HEUN = """k1 = {rates}
k2 = self.rates(state + k1{over}{given})
state = state + (k1 + k2) / {twice}"""
_MIDPOINT = "state = state + self.rates(state + {rates} / {twice}{given}){over}"
_EULER = "state = state + {rates}{over}"
_SEMI_IMPLICIT = """for index in {order}:
    state[index] += {rates}[index]{over}"""
_RULES = {
    "runge-kutta": _RUNGE_KUTTA,
    "heun": _HEUN,
    "midpoint": _MIDPOINT,
    "euler": _EULER,
    "semi-implicit": _SEMI_IMPLICIT,
}
_WORDS = {"runge-kutta": "Runge-Kutta", "heun": "Heun", "midpoint": "midpoint", "euler": "Euler"}


def add_flow(flow: Flow, program: Program) -> None:
    """Add the method and the statement that moves `state` by a step."""
    texts = [formula.text() for formula in flow.formulas]
    outside = sorted(mentioned(" ".join(texts)) - set(flow.names) - {"np", "abs", "max", "min"})
    given = "".join(f", {name}" for name in outside)
    lines = [
        f"def rates(self, state{given}):",
        '    """Return the changes per step if the rates stayed the same."""',
        f"    {', '.join(flow.names)}{',' * (len(flow.names) == 1)} = state",
        "    return np.array([",
        *(f"        {text}," for text in texts),
        "    ])",
    ]
    program.methods.append("\n".join(lines))
    program.statements.append(_advance(flow, given))


def next_in_flow(flow: Flow, name: str) -> str:
    """Return the expression of a variable's next value."""
    return f"state[{flow.names.index(name)}]"


def _advance(flow: Flow, given: str) -> Statement:
    """Write the integrator."""
    parts = flow.scheme.parts
    body = _RULES[flow.scheme.rule].format(
        rates=f"self.rates(state{given})",
        given=given,
        over=f" / {parts}" if parts > 1 else "",
        twice=2 * parts,
        six=6 * parts,
        order=flow.scheme.order,
    )
    starts = [jump.text(name) for jump, name in zip(flow.jumps, flow.names, strict=False)]
    lines = [f"state = np.array([{', '.join(starts or flow.names)}])"]
    if parts > 1:
        lines += [f"for _ in range({parts}):", *(f"    {line}" for line in body.splitlines())]
    else:
        lines += body.splitlines()
    words = _WORDS.get(flow.scheme.rule, flow.scheme.rule)
    comment = f"{parts} {words} steps" if parts > 1 else f"one {words} step"
    jumps = " after what the action changes at once" if flow.jumps else ""
    return Statement("\n".join(lines), f"The state moves by {comment}{jumps}.")
