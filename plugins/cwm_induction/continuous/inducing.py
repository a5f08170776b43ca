"""Programs for observations that are one box of real numbers.

`induce` finds laws for the changes of variables, for the end of an episode and for the reward.
`write` returns the text of a program, whose docstring states which parts are approximations.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cwm_cli.text import percent
from cwm_induction.continuous.dynamics import Explainer, Explanations, Hypothesis
from cwm_induction.continuous.regression import Formula
from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.variables import Latents, Variable, inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.laws.explaining import case_name
from cwm_induction.mechanics.text import MechanicsText
from cwm_induction.rewards import Reward, ending, reward_of
from cwm_induction.rules import Feature, Threshold, ThresholdRule
from cwm_induction.structure import KnownStructure
from cwm_induction.writing.rounding import literal
from cwm_induction.writing.statements import ProgramDraft, Statement

DYNAMICS_SHARE = 0.9
"""Share of the work units for the next observation; the remaining units are for the reward."""


@dataclass(frozen=True)
class SystemFindings:
    """The findings about an environment; `capped` if the search reached its time limit."""

    samples: Samples
    latents: Latents
    dynamics: Explanations
    ending: ThresholdRule
    reward: Reward
    capped: bool


def induce(
    samples: Samples,
    hypothesis: Hypothesis,
    rng: np.random.Generator,
    effort: Effort,
    known: KnownStructure | None = None,
) -> SystemFindings:
    """Explain the transitions.

    Equations are fitted to the rows in `samples.learn`; the held-out rows select the equations. If
    `known` has a mechanism from fewer rows that is still right, no other mechanism is searched. A
    new mechanism is stored in `known`.
    """
    behind = latents(samples)
    before = known.mechanics if known and known.holds_for(len(samples)) else None
    part = effort.part(1 / DYNAMICS_SHARE)
    given = part.units
    explainer = Explainer(samples, behind.variables, hypothesis, rng, part, known=before)
    dynamics = explainer.explain()
    effort.units -= given - part.units
    effort.capped = effort.capped or part.capped
    if known is not None and dynamics.mechanics is not None and not dynamics.is_known:
        known.rows, known.mechanics = len(samples), dynamics.mechanics
    reward = reward_of(
        samples,
        behind.variables,
        inputs_of(samples),
        effort.share(0.5),
        dynamics.kinematics,
    )
    end = ending(samples, behind.variables, reward.places)
    return SystemFindings(samples, behind, dynamics, end, reward, effort.capped)


def write(findings: SystemFindings) -> str:
    """Return the text of the program."""
    return EquationsWriter(findings).text()


@dataclass(frozen=True)
class EquationsWriter:
    """Writes findings as a program."""

    findings: SystemFindings

    def text(self) -> str:
        """Return the source text of the program."""
        program, actions = self.program, self.findings.samples.action_space
        if actions.kind == "box" and len(actions.shape) != 1:
            program.statements.append(Statement("inputs = np.ravel(action)"))
        if self.findings.dynamics.mechanics is not None:
            self._mechanics.write()
        if self.findings.dynamics.flow is not None:
            self.findings.dynamics.flow.add_to(program)
        for variable in self.findings.latents.variables:
            program.statements.append(Statement(f"{variable.name} = {variable.source}"))
        for variable in self.findings.latents.variables:
            if not variable.is_kept:
                program.statements += self._change(variable)
        program.statements += [self._ending(), self.rewarded()]
        return program.text()

    @cached_property
    def program(self) -> ProgramDraft:
        """The draft of the program, which collects the statements."""
        kept = {v.next for v in self.findings.latents.variables if v.is_kept}
        components = ", ".join(c for c in self.findings.latents.components if c not in kept)
        shape = self.findings.samples.shape
        result = f"np.array([{components}])"
        return ProgramDraft(
            summary(self.findings), result, shape, approximations=self._approximations
        )

    @property
    def _approximations(self) -> dict[int, str]:
        """The components without an exact equation, and how they are predicted."""
        found, latents = self.findings.dynamics, self.findings.latents
        owners = {index: latents.owner(index) for index in range(len(latents.components))}
        return {
            index: found.trees[name].tree.words if name in found.trees else "approximate formula"
            for index, name in owners.items()
            if name in found.rough
        }

    @cached_property
    def _mechanics(self) -> MechanicsText:
        mechanics = self.findings.dynamics.mechanics
        if mechanics is None:
            raise ValueError("no mechanism was found")
        return MechanicsText(mechanics, self.program)

    def explained(self, name: str) -> str | None:
        """Return an expression that replaces a variable's equation; subclasses may override it."""
        return None

    def _change(self, variable: Variable) -> Iterator[Statement]:
        """Yield the statements that set a variable's next value."""
        dynamics, name = self.findings.dynamics, variable.name
        if (replacement := self.explained(name)) is not None:
            yield self._assigned(variable, replacement, "")
        elif dynamics.flow is not None and name in dynamics.flow.names:
            yield self._assigned(variable, dynamics.flow.next_of(name), "")
        elif dynamics.mechanics is not None and name in dynamics.mechanics.names:
            yield self._assigned(variable, self._mechanics.next_of(name), "")
        elif name in dynamics.laws:
            yield from self._laws(variable)
        elif (cased := dynamics.trees.get(name)) is not None:
            self.program.methods.append(cased.method(name))
            yield self._assigned(variable, cased.call(name), "")
        else:
            formula = dynamics.formulas.get(name) or dynamics.rough.get(name) or Formula((), ())
            comment = (
                "An approximation: no exact equation was found." if name in dynamics.rough else ""
            )
            yield self._assigned(variable, formula.text(name), comment)

    def _laws(self, variable: Variable) -> Iterator[Statement]:
        """Yield the values of formulas that rules compare, and then the rules with their laws."""
        laws = self.findings.dynamics.laws[variable.name]
        every = self.findings.dynamics.laws.values()
        names = {name for other in every for name in other.names}
        texts = [formula.text(variable.name) for formula in laws.formulas]
        for index, text in enumerate(texts):
            case = case_name(variable.name, index)
            if case in names:
                yield Statement(f"{case} = {text}")
                texts[index] = case
        if not laws.rules:
            yield self._assigned(variable, texts[0], "")
            return
        chosen = f"{variable.name}_chosen"
        lines = []
        for number, (rule, index) in enumerate(laws.rules):
            lines.append(f"{'elif' if number else 'if'} {rule.text()}:")
            lines.append(f"    {chosen} = {texts[index]}")
        lines += ["else:", f"    {chosen} = {texts[0]}"]
        yield Statement("\n".join(lines), f"The law of {variable.name} depends on the state.")
        yield self._assigned(variable, chosen, "")

    def _assigned(self, variable: Variable, text: str, comment: str) -> Statement:
        """Return the assignment of the next value, within its cycle and its limits."""
        if variable.is_angle and self._read_as_number(variable):
            text = f"({text} + np.pi) % (2 * np.pi) - np.pi"
        if variable.cycle is not None:
            text = variable.cycle.text(text)
        return Statement(f"{variable.next} = {self._clipped(variable, text)}", comment)

    def _clipped(self, variable: Variable, text: str) -> str:
        """Clip an expression to the limits of its variable, unless the episode ends before them."""
        ends = variable.next in self.findings.ending.names and bool(variable.free.all())
        if variable.still or ends:
            return text
        reached = "" if not variable.free.all() else "; no transition reached them"
        source = "the observation space" if variable.declared else "the data"
        comment = f"Limits of {variable.name} in {source}{reached}."
        name = variable.name.upper()
        if np.isfinite(variable.low):
            low = self.program.constant(f"{name}_MIN", _single(variable.low), comment)
            text, comment = f"max({text}, {low})", ""
        if np.isfinite(variable.high):
            high = self.program.constant(f"{name}_MAX", _single(variable.high), comment)
            text = f"min({text}, {high})"
        return text

    def _read_as_number(self, variable: Variable) -> bool:
        """Return whether an expression reads an angle's next value outside of sine and cosine."""
        findings = self.findings
        texts = [*findings.reward.texts, findings.ending.text()]
        texts += [t.text for f in findings.dynamics.formulas.values() for t in f.terms]
        bare = [re.sub(r"np\.(sin|cos)\([^()]*\)", "", text) for text in texts]
        return any(variable.next in text for text in bare)

    def _ending(self) -> Statement:
        """Return the statement for the end of the episode."""

        def named(feature: Feature, threshold: Threshold) -> str:
            return self.program.constant(feature.label, threshold.text, threshold.comment)

        rule = self.findings.ending
        text = rule.text(named)
        return Statement(f"terminated = {text if rule.is_constant else f'bool({text})'}")

    def rewarded(self) -> Statement:
        """Return the statement for the reward: its first formula, then the rules with others."""
        reward = self.findings.reward
        first = reward.formula
        lines = [f"reward = {first.text()}"]
        for number, (rule, index) in enumerate(reward.laws.rules):
            formula = reward.laws.formulas[index]
            lines.append(f"{'elif' if number else 'if'} {rule.text()}:")
            lines.append(f"    reward {_change(first, formula) or f'= {formula.text()}'}")
        exact = reward.right > 0.98
        return Statement(
            "\n".join(lines), "" if exact else "An approximation: no exact formula was found."
        )


def summary(findings: SystemFindings) -> list[str]:
    """Return the paragraphs of the program's docstring, the first one a summary sentence."""
    count = len(findings.samples)
    first = f"A world model induced from {count} transitions."
    paragraphs = [" ".join(_on_changes(findings)), _on_the_reward(findings)]
    if findings.capped:
        paragraphs.append("The search reached its time limit; a longer search may find more.")
    return [first, *(paragraph for paragraph in paragraphs if paragraph)]


def _on_changes(findings: SystemFindings) -> Iterator[str]:
    """Yield sentences about the equations of the variables."""
    found = findings.dynamics
    exact = [v.name for v in findings.latents.variables if v.name in found.formulas]
    still = [v.name for v in findings.latents.variables if v.name in exact and v.still]
    moving = [name for name in exact if name not in still]
    if moving:
        yield f"Equations with few terms were found for {listed(moving)}."
    if found.mechanics is not None:
        right = percent(found.mechanics.right)
        yield (
            f"{listed(found.mechanics.names)} move as a jointed mechanism. Its masses and "
            f"forces were fitted through the integrator; they predict {right} of the "
            "validation transitions."
        )
    if found.flow is not None:
        scheme = found.flow.scheme
        parts = "one step" if scheme.parts == 1 else f"{scheme.parts} substeps"
        names = listed(found.flow.names)
        yield f"{names} follow a vector field, integrated in {parts} ({scheme.rule})."
    if found.laws:
        yield f"{listed(found.laws)} follow laws that depend on the state."
    if formulas := [name for name in found.rough if name not in found.trees]:
        yield f"The equations of {listed(formulas)} are approximations: expect errors."
    if found.trees:
        yield f"Regression trees approximate {listed(found.trees)}: expect errors."
    if still:
        yield f"{listed(still)} never changed."


def _on_the_reward(findings: SystemFindings) -> str:
    """Return a warning if the laws predict at most 98 % of the rewards."""
    return "" if findings.reward.right > 0.98 else "The reward is an approximation."


def listed(names: Iterable[str]) -> str:
    """Join names with commas and "and"."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def _change(first: Formula, other: Formula) -> str:
    """Return an augmented assignment from one formula to another, if one term differs; else ""."""
    weights = dict.fromkeys([t.text for t in (*first.terms, *other.terms)], 0.0)
    for formula, sign in ((first, -1.0), (other, 1.0)):
        for term, weight in zip(formula.terms, formula.weights, strict=True):
            weights[term.text] += sign * weight
    terms = {t.text: t for t in (*first.terms, *other.terms)}
    changed = {text: w for text, w in weights.items() if abs(w) > 1e-9}
    if len(changed) != 1 or len(first.terms) < 2:
        return ""
    [(text, weight)] = changed.items()
    amount = Formula((terms[text],), (float(literal(abs(weight))),))
    return f"{'+' if weight > 0 else '-'}= {amount.text()}"


def _single(value: float) -> str:
    """Return a literal of a bound, with the fewest digits if it is a single-precision number."""
    return repr(float(str(np.float32(value)))) if np.float32(value) == value else literal(value)
