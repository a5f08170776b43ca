"""The problem of finding rules in words: prompts from what was recorded, verdicts by likelihood.

A candidate is a text with a rule on each line. It is as good as what was recorded is likely under
it, and how likely that is, the statistician says (Levy et al., 2025).
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from math import exp, log
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from cwm_cli.envs.text_view import Change, TextView
from cwm_cli.errors import CwmError
from cwm_cli.problems.templates import messages
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import GENERATE, IMPROVE, Message, Move, Node, Problem, Verdict
from cwm_cli.search.reading import blocks
from cwm_cli.text import clean, estimated_tokens
from cwm_theorize.statistician import (
    Statistician,
    TextTransition,
    normalised,
    text_transitions,
)

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

Trajectory = tuple[int, ...]
"""The steps of an episode in a row, as places in the list of all transitions."""

RECORDED = (
    "## What was recorded\n\nEach block has the first state of some steps, then each action and "
    "the change that followed."
)
MISTAKES = "## What the current rules predict wrongly"
PLAIN_FORM = (
    "Each rule is one short sentence in plain English that names an action, its conditions and the "
    "change that follows. Leave out what the description says already: the reader has it, too."
)
"""The form of rules for a reader without a language of its own, such as a language model."""

MOST_NAMED = 3
"""Predicted changes that are named; of more the prompt gives the number."""

MOST_KEPT = 2000
"""Texts whose weights are kept, those that were used last: as many as a published run proposes."""

TIED = 1e-9
"""Candidates are equally likely if their log-probabilities differ by at most this."""

ALIKE = 1e-12
"""Relative difference of log-likelihoods below which nothing was told apart."""

SUSPICIOUS = 5
"""Different rules that weigh the same before it is asked whether no rules at all do, too: a few
may well apply to nothing that was recorded."""


SIMPLICITY = 0.1
"""Rules that say the same in ten words less are 2.7 times as likely: what nothing speaks for goes,
and a single transition that is told better outweighs a condition."""


@dataclass
class TheoryProblem(Problem):
    """Find rules under which the evidence is likely, as the statistician has it.

    The evidence is what was told by `observe`, phase by phase; `policy` says what of it counts.
    Before anything is seen rules are the likelier the fewer words they have (`simplicity`), so
    that afterwards they are proportional to the exponential of the verdict's `log_likelihood` and
    `log_prior` together. Its `score` is that for each transition (the geometric mean), and its
    `parts` the likelihoods of the kinds of change. However the evidence grows, no transition is
    weighed twice under the same rules.
    """

    moves = (GENERATE, IMPROVE)
    answer_tokens = 200  # as published (Levy et al., 2025)
    file = "best.txt"

    statistician: Statistician
    policy: Literal["cumulative", "phase", "window"] = "cumulative"
    """Data for scoring rules. cumulative: every different transition so far, once; phase: the last
    trajectories of the phase, as published; window: the newest transitions, each once."""
    subset: Annotated[int, Field(ge=1)] = 10
    """Number of trajectories per phase for scoring, the last ones. Unless policy=phase, also the
    last trajectory with each kind of change that these do not have."""
    window: Annotated[int, Field(ge=1)] = 200
    """Number of different transitions for scoring with policy=window, the newest ones."""
    worst: Annotated[int, Field(ge=0)] = 5
    """Maximum number of wrongly predicted transitions in an improve prompt, the least likely first,
    each with the predicted change. Published: 0."""
    evidence_tokens: Annotated[int, Field(ge=1)] | None = 2000
    """Approximate maximum number of tokens of recorded trajectories in a prompt, newest first.
    none: all trajectories used for scoring, as published."""
    simplicity: Annotated[float, Field(ge=0)] = SIMPLICITY
    """Penalty of the log-prior for each word of the rules, as a natural logarithm. 0: all rules are
    equally likely, as published."""
    longest: Annotated[int, Field(ge=1)] = 4000
    """Maximum number of characters of the rules; longer rules list cases."""
    warning: str = field(default="", init=False)
    """What the user should know of the statistician, in a line."""
    scorings: int = field(default=0, init=False)
    """How many candidates were weighed by the evidence, each time that they were."""
    weighed: int = field(default=0, init=False)
    """How many transitions the statistician weighed for that in this process."""
    _seen: _Evidence = field(init=False, repr=False)
    _weights: OrderedDict[str, np.ndarray] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)
    _reference: float | None = field(default=None, init=False, repr=False)
    _alike: set[str] | None = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with nothing observed."""
        self._seen = _Evidence(self.statistician.view)

    @property
    def evidence(self) -> list[TextTransition]:
        """The transitions that rules are weighed by; of a phase one may occur several times."""
        return self._seen.evidence

    @property
    def discovered(self) -> tuple[str, ...]:
        """The sentences that have followed an action so far, in the order in which they did."""
        return tuple(self._seen.sentences)

    def observe(self, rows: Sequence[Transition]) -> None:
        """Take the rows of a phase into the evidence: verdicts of before are outdated by it."""
        before = self.discovered
        phase = self._seen.told(rows, self.subset, each_kind=self.policy != "phase")
        match self.policy:
            case "cumulative":
                self._seen.count_all(phase)
            case "phase":
                self._seen.count_only(phase)
            case "window":
                self._seen.count_newest(phase, self.window)
        self._reference = None
        if self.statistician.view.lists_discovered and self.discovered != before:
            self._weights.clear()  # what is asked has other words from now on

    def update(self, node: Node) -> None:
        """Count what was weighed, and look whether the statistician tells rules apart."""
        if node.verdict.log_likelihood is None:
            return
        self.scorings += 1
        if self._alike is not None and len(self._seen.places):
            self._compare(node.program, node.verdict.log_likelihood)

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Show the world, what was recorded, and the rules of before, if there are any."""
        return self._worded(move)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Leave out trajectories first, then the end of the description."""
        return self._worded(move, room)

    def _worded(self, move: Move, room: int | None = None) -> tuple[Message, ...]:
        """Ask in so many characters, if there is a limit."""
        recorded = self._seen.words(self.evidence_tokens)
        if recorded:
            recorded = f"\n\n{RECORDED}\n\n{recorded}"
        mistakes = self._mistakes(move.program) if move.action == IMPROVE else ""
        view, reader = self.statistician.view, self.statistician.backend
        unread = reader.unread(view, move.program)
        return messages(
            "theory",
            move,
            room=room,
            description=view.guide().strip(),
            evidence=recorded,
            form=reader.wording(view) or PLAIN_FORM,
            longest=f"{self.longest:,}",
            unread="\n".join(["\n\nThese lines cannot be read:", *unread]) if unread else "",
            examples=f"\n\n{MISTAKES}\n\n{mistakes}" if mistakes else "",
        )

    def _mistakes(self, rules: str) -> str:
        """Show the least likely transitions with what the rules predict instead."""
        if not self.worst or not len(self._seen.places):
            return ""
        weights, places = self._weighed(rules), np.unique(self._seen.places)
        unlikely = places[weights[places] <= weights[places].mean()]
        # One of each kind of change before a second one: the same mistake repeats within a kind.
        shown, times = list[tuple[int, float, TextTransition]](), Counter[str]()
        for place in unlikely[np.argsort(weights[unlikely], kind="stable")]:
            transition = self._seen.transitions[place]
            shown.append((times[transition.change.kind], weights[place], transition))
            times[transition.change.kind] += 1
        shown = sorted(shown, key=lambda each: each[:2])[: self.worst]
        least = [transition for *_, transition in shown]
        every = self.statistician.of_candidates(rules, least, self.discovered)
        return "\n\n".join(filter(None, map(_mistake, least, normalised(every))))

    def read(self, text: str, move: Move) -> str:
        """Return the rules of a completion, one on each line."""
        return read_rules(text)

    def judge(self, candidate: str) -> Verdict:
        """Weigh rules by the evidence."""
        if not candidate.strip():
            message = "the answer holds no rules: write each of them on a line of its own"
            return Verdict(score=0.0, failure=Failure(kind="no_program", message=message))
        if len(candidate) > self.longest:
            message = (
                f"the rules have {len(candidate):,} characters, and those of more than "
                f"{self.longest:,} are not weighed: say it in fewer words"
            )
            return Verdict(score=0.0, failure=Failure(kind="load_error", message=message))
        weights, places = self._weighed(candidate), self._seen.places
        if not len(places):
            failure = Failure(
                kind="mismatch", message="there are no transitions to weigh rules by yet"
            )
            return Verdict(score=0.0, failure=failure, log_likelihood=0.0)
        log_likelihood = float(weights[places].sum())
        log_prior = -self.simplicity * len(candidate.split())
        each = min(0.0, (log_likelihood + log_prior) / len(places))
        parts = {
            kind: exp(min(0.0, float(weights[of_kind].mean())))
            for kind, of_kind in self._seen.by_kind.items()
        }
        message = (
            f"what was recorded has a log-likelihood of {log_likelihood:.6g} under these rules; "
            f"they say least of the kind `{min(parts, key=parts.__getitem__)}`"
        )
        return Verdict(
            score=exp(each),
            parts=parts,
            failure=Failure(kind="mismatch", message=message) if each < 0 else None,
            error=-each / log(10),
            log_likelihood=log_likelihood,
            log_prior=log_prior,
        )

    def _weighed(self, rules: str) -> np.ndarray:
        """Return the log-likelihood of every transition met so far, NaN where it does not count."""
        seen = self._seen
        with self._lock:
            before = self._weights.get(rules, np.empty(0))
        weights = np.full(len(seen.transitions), np.nan)
        weights[: len(before)] = before
        missing = np.unique(seen.places[np.isnan(weights[seen.places])])
        if len(missing):
            asked = [seen.transitions[place] for place in missing]
            weights[missing] = self.statistician.log_likelihoods(rules, asked, self.discovered)
            if np.isnan(weights[missing]).any():
                raise CwmError(
                    "the statistician returned no number for a recorded change: choose "
                    "another --statistician"
                )
        with self._lock:
            self.weighed += len(missing)
            self._weights[rules] = weights
            self._weights.move_to_end(rules)
            if len(self._weights) > MOST_KEPT:
                self._weights.popitem(last=False)
        return weights

    def _compare(self, rules: str, log_likelihood: float) -> None:
        """Warn, once, where the statistician gives the same weight to many rules and to none."""
        assert self._alike is not None
        if self._reference is None:
            self._reference = log_likelihood
        if not _equal(self._reference, log_likelihood):
            self._alike = None
            return
        self._alike.add(rules)
        if len(self._alike) < SUSPICIOUS:
            return
        unruled = float(self._weighed("")[self._seen.places].sum())
        if _equal(unruled, log_likelihood):
            self.warning = (
                f"the statistician gives the same weight to {len(self._alike)} different rules and "
                "to none: it cannot read them, or none of them applies; see --statistician"
            )
            self._alike = None


class _Evidence:
    """What was observed, in words: each transition once, and what of it counts at present."""

    def __init__(self, view: TextView) -> None:
        self.view = view
        self.transitions: list[TextTransition] = []
        self.sentences: dict[str, None] = {}
        self.trajectories: list[Trajectory] = []
        self.places = np.empty(0, dtype=np.intp)
        self.by_kind: dict[str, np.ndarray] = {}
        self.evidence: list[TextTransition] = []
        self._known: dict[tuple[str, str, str], int] = {}
        self._words: dict[int | None, str] = {}

    def told(self, rows: Sequence[Transition], most: int, *, each_kind: bool) -> list[Trajectory]:
        """Put the last trajectories into words, and on request the last with each other kind."""
        changes = [self.view.change(row) for row in rows]
        self.sentences |= dict.fromkeys(change.text for change in changes)
        ends = np.cumsum([0, *(row.terminated or row.truncated for row in rows)])
        numbered = zip(rows, changes, ends.tolist(), strict=False)
        by_episode = groupby(numbered, key=lambda step: (step[0].episode, step[2]))
        phase = [list(steps) for _, steps in by_episode]
        kept = set(range(len(phase))[-most:])
        kinds = {change.kind: place for place, of in enumerate(phase) for _, change, _ in of}
        if each_kind:
            having = {change.kind for place in kept for _, change, _ in phase[place]}
            kept |= {place for kind, place in kinds.items() if kind not in having}
        return [
            tuple(self._place(row, change) for row, change, _ in phase[place])
            for place in sorted(kept)
        ]

    def _place(self, row: Transition, change: Change) -> int:
        """Return the place of a transition, a new one if it was never met."""
        seen = row.observation
        key = self.view.state(seen), self.view.action(seen, row.action), change.text
        if key not in self._known:
            self._known[key] = len(self.transitions)
            self.transitions += text_transitions(self.view, [row])
        return self._known[key]

    def count_all(self, phase: list[Trajectory]) -> None:
        """Let every transition that was ever met count, once."""
        self.trajectories += phase
        self._count(range(len(self.transitions)))

    def count_only(self, trajectories: list[Trajectory]) -> None:
        """Let these trajectories count, each step as often as it was taken."""
        self.trajectories = trajectories
        self._count([place for steps in trajectories for place in steps])

    def count_newest(self, phase: list[Trajectory], window: int) -> None:
        """Let the transitions that were met last count, each once."""
        self.trajectories += phase
        newest = dict.fromkeys(p for steps in reversed(self.trajectories) for p in reversed(steps))
        kept = {*[*newest][:window]}
        self.trajectories = [each for each in self.trajectories if not kept.isdisjoint(each)]
        self._count(sorted(kept))

    def _count(self, places: Sequence[int]) -> None:
        """Settle what counts."""
        self.evidence = [self.transitions[place] for place in places]
        self.places = np.array(places, dtype=np.intp)
        kinds = np.array([transition.change.kind for transition in self.evidence], dtype=object)
        order = dict.fromkeys([*self.view.kinds, *kinds.tolist()])
        self.by_kind = {k: self.places[kinds == k] for k in order if (kinds == k).any()}
        self._words.clear()

    def words(self, tokens: int | None) -> str:
        """Show the newest trajectories, in about so many tokens, in the order of time."""
        if tokens not in self._words:
            self._words[tokens] = "\n\n".join(reversed([*self._fitting(tokens)]))
        return self._words[tokens]

    def _fitting(self, room: int | None) -> Iterator[str]:
        """Yield the newest trajectories that there is room for; of a long one its first steps."""
        for count, steps in enumerate(dict.fromkeys(reversed(self.trajectories))):
            text = self.worded(steps)
            if room is not None:
                sizes = accumulate(map(estimated_tokens, text.splitlines(keepends=True)))
                fitting = [size for size in sizes if size <= room]
                lines = text.splitlines()
                if not fitting or (count and len(fitting) < len(lines)):
                    return
                text, room = "\n".join(lines[: len(fitting)]), room - fitting[-1]
            yield text

    def worded(self, steps: Trajectory) -> str:
        """Write a trajectory down: the first state, then what was done and what followed."""
        shown = [self.transitions[place] for place in steps]
        pairs = (f"- {step.action} -> {step.change.text}" for step in shown)
        return "\n".join([f"At first: {shown[0].state}", *pairs])


def _mistake(transition: TextTransition, log_probabilities: np.ndarray) -> str:
    """Show a transition and the likeliest change; "" if that is the recorded one."""
    if not transition.candidates:
        return ""
    recorded, highest = transition.change.text, float(log_probabilities.max())
    likeliest = [
        change.text
        for change, found in zip(transition.candidates, log_probabilities.tolist(), strict=True)
        if found >= highest - TIED
    ]
    if likeliest == [recorded]:
        return ""
    place = [change.text for change in transition.candidates].index(recorded)
    predicted = " or ".join(likeliest)
    if len(likeliest) > MOST_NAMED:
        predicted = f"nothing definite: {len(likeliest)} changes are equally likely"
    return (
        f"State: {transition.state}\nAction: {transition.action}\nRecorded: {recorded} "
        f"(probability {exp(log_probabilities[place]):.2g})\nPredicted: {predicted}"
    )


ITEM = re.compile(r"\s*(?:[-*+\N{BULLET}]|\(?\d{1,3}[.):])\s+(?=\S)")
"""What begins an item of a list."""

THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
"""What some models think aloud before they answer."""


def read_rules(text: str) -> str:
    """Return the rules in an answer, one on each line: of a block, of a list, or all its lines.

    Marks of lists and of emphasis are left out, and an introduction that ends with a colon is.
    What is around a list is no rule.
    """
    text = THOUGHTS.sub("", text)
    fenced = [block for block in blocks(text) if block.strip()]
    lines = [line for line in "\n".join(fenced or [text]).splitlines() if line.strip()]
    rules: list[str] = []
    for line in lines:
        if item := ITEM.match(line):
            rules.append(line[item.end() :])
        elif rules and line[:1].isspace():
            rules[-1] += f" {line.strip()}"
    introduced = len(lines) > 1 and lines[0].rstrip(" *").endswith(":")
    if not rules or (len(rules) == 1 and not introduced):  # one mark alone makes no list
        rules = [ITEM.sub("", line) for line in lines[introduced:]]
    kept = (clean(re.sub(r"\*\*|`", "", rule)).strip() for rule in rules)
    return "\n".join(filter(None, kept))


def _equal(one: float, other: float) -> bool:
    """Whether two log-likelihoods tell nothing apart."""
    return one == other or abs(one - other) <= ALIKE * max(abs(one), abs(other))
