"""The problem of finding rules in words: prompts, parsing of answers, and likelihoods.

A candidate is a text with one rule per line. Its score is the likelihood of the recorded
transitions under the rules, as the statistician computes it (Levy et al., 2025).
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
    normalise,
    text_transitions,
)

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

Trajectory = tuple[int, ...]
"""Consecutive steps of an episode, as indices in the list of all transitions."""

RECORDED = (
    "## What was recorded\n\nEach block has the first state of some steps, then each action and "
    "the change that followed."
)
MISTAKES = "## What the current rules predict wrongly"
PLAIN_FORM = (
    "Each rule is one short sentence in plain English that names an action, its conditions and the "
    "change that follows. Leave out what the description says already: the reader has it, too."
)
"""Form of the rules for a statistician without a language of its own, such as a language model."""


SIMPLICITY = 0.1
"""Default penalty per word. Ten words fewer make equally good rules 2.7 times as likely, so that
needless conditions disappear, while one better predicted transition outweighs a condition."""


@dataclass
class TheoryProblem(Problem):
    """Find rules under which the evidence is likely.

    The evidence consists of transitions passed to `observe`, phase by phase; `policy` selects the
    ones that count. Rules have a prior that decreases with their number of words (`simplicity`), so
    that their posterior is proportional to exp(`log_likelihood` + `log_prior`) of the verdict. The
    `score` of a verdict is the geometric mean of this over transitions, and its `parts` are
    likelihoods by kind of change. No transition is scored twice under the same rules.
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
    """A warning about the statistician for the user, in one line."""
    scorings: int = field(default=0, init=False)
    """Number of times that candidates were scored on the evidence."""
    weighed: int = field(default=0, init=False)
    """Number of transitions that the statistician scored for that in this process."""
    _seen: _Evidence = field(init=False, repr=False)
    _weights: OrderedDict[str, np.ndarray] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)
    _reference: float | None = field(default=None, init=False, repr=False)
    _equal_rules: set[str] | None = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self._seen = _Evidence(self.statistician.view)

    @property
    def evidence(self) -> list[TextTransition]:
        """The transitions that rules are scored on; policy=phase may repeat transitions."""
        return self._seen.evidence

    @property
    def discovered(self) -> tuple[str, ...]:
        """The distinct sentences that followed an action so far, in order of discovery."""
        return tuple(self._seen.sentences)

    def observe(self, rows: Sequence[Transition]) -> None:
        """Add the rows of a phase to the evidence; earlier verdicts are outdated afterwards."""
        before = self.discovered
        phase = self._seen.add_phase(rows, self.subset, each_kind=self.policy != "phase")
        match self.policy:
            case "cumulative":
                self._seen.use_all(phase)
            case "phase":
                self._seen.use_only(phase)
            case "window":
                self._seen.use_newest(phase, self.window)
        self._reference = None
        if self.statistician.view.lists_discovered and self.discovered != before:
            self._weights.clear()  # the prompt lists other sentences from now on

    def update(self, node: Node) -> None:
        """Count a scored node, and check whether the statistician distinguishes rules."""
        if node.verdict.log_likelihood is None:
            return
        self.scorings += 1
        if self._equal_rules is not None and len(self._seen.places):
            self._compare(node.program, node.verdict.log_likelihood)

    def messages(self, move: Move) -> tuple[Message, ...]:
        """Return a prompt with the environment, recorded transitions, and current rules, if any."""
        return self._prompt(move)

    def shorter(self, move: Move, room: int) -> tuple[Message, ...]:
        """Return a prompt of at most `room` characters.

        Trajectories are removed first, then the end of the description.
        """
        return self._prompt(move, room)

    def _prompt(self, move: Move, room: int | None = None) -> tuple[Message, ...]:
        recorded = self._seen.as_text(self.evidence_tokens)
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
        """Return the least likely transitions, each with the predicted change."""
        if not self.worst or not len(self._seen.places):
            return ""
        weights, places = self._scores(rules), np.unique(self._seen.places)
        unlikely = places[weights[places] <= weights[places].mean()]
        # Show each kind of change once before a second time: mistakes repeat within a kind.
        shown, times = list[tuple[int, float, TextTransition]](), Counter[str]()
        for place in unlikely[np.argsort(weights[unlikely], kind="stable")]:
            transition = self._seen.transitions[place]
            shown.append((times[transition.change.kind], weights[place], transition))
            times[transition.change.kind] += 1
        shown = sorted(shown, key=lambda each: each[:2])[: self.worst]
        least = [transition for *_, transition in shown]
        every = self.statistician.of_candidates(rules, least, self.discovered)
        return "\n\n".join(filter(None, map(_mistake, least, normalise(every))))

    def read(self, text: str, move: Move) -> str:
        """Return the rules in a completion, one per line."""
        return read_rules(text)

    def judge(self, candidate: str) -> Verdict:
        """Score rules on the evidence."""
        if not candidate.strip():
            message = "the answer has no rules: write one rule per line"
            return Verdict(score=0.0, failure=Failure(kind="no_program", message=message))
        if len(candidate) > self.longest:
            message = (
                f"the rules have {len(candidate):,} characters, but at most {self.longest:,} are "
                "scored: use fewer words"
            )
            return Verdict(score=0.0, failure=Failure(kind="load_error", message=message))
        weights, places = self._scores(candidate), self._seen.places
        if not len(places):
            failure = Failure(
                kind="mismatch", message="there are no transitions to score rules on yet"
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
            f"the recorded changes have a log-likelihood of {log_likelihood:.6g} under these "
            f"rules; the least likely kind is `{min(parts, key=parts.__getitem__)}`"
        )
        return Verdict(
            score=exp(each),
            parts=parts,
            failure=Failure(kind="mismatch", message=message) if each < 0 else None,
            error=-each / log(10),
            log_likelihood=log_likelihood,
            log_prior=log_prior,
        )

    def _scores(self, rules: str) -> np.ndarray:
        """Return log-likelihoods (transitions,), NaN for transitions that do not count."""
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
            # rule sets whose scores are cached, least recently used first out; a published run
            # proposes as many
            max_cached_rules = 2000
            if len(self._weights) > max_cached_rules:
                self._weights.popitem(last=False)
        return weights

    def _compare(self, rules: str, log_likelihood: float) -> None:
        """Warn once if the statistician gives the same score to many rules and to no rules."""
        assert self._equal_rules is not None
        if self._reference is None:
            self._reference = log_likelihood
        if not _equal(self._reference, log_likelihood):
            self._equal_rules = None
            return
        self._equal_rules.add(rules)
        # number of different rules with equal scores before the problem compares them with no
        # rules; a few rules may not apply to any recorded transition
        min_equal_rules = 5
        if len(self._equal_rules) < min_equal_rules:
            return
        without_rules = float(self._scores("")[self._seen.places].sum())
        if _equal(without_rules, log_likelihood):
            self.warning = (
                f"the statistician gives the same score to {len(self._equal_rules)} different "
                "rules and to no rules: it cannot read them, or they never apply; see "
                "--statistician"
            )
            self._equal_rules = None


class _Evidence:
    """Distinct recorded transitions in words, and the indices of the current evidence."""

    def __init__(self, view: TextView) -> None:
        self.view = view
        self.transitions: list[TextTransition] = []
        self.sentences: dict[str, None] = {}
        self.trajectories: list[Trajectory] = []
        self.places = np.empty(0, dtype=np.intp)
        self.by_kind: dict[str, np.ndarray] = {}
        self.evidence: list[TextTransition] = []
        self._known: dict[tuple[str, str, str], int] = {}
        self._texts: dict[int | None, str] = {}

    def add_phase(
        self, rows: Sequence[Transition], most: int, *, each_kind: bool
    ) -> list[Trajectory]:
        """Store the last `most` trajectories; return all stored trajectories of the phase.

        With `each_kind`, the last trajectory with each other kind of change is stored, too.
        """
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
            tuple(self._index(row, change) for row, change, _ in phase[place])
            for place in sorted(kept)
        ]

    def _index(self, row: Transition, change: Change) -> int:
        """Return the index of a transition; add it if it is new."""
        seen = row.observation
        key = self.view.state(seen), self.view.action(seen, row.action), change.text
        if key not in self._known:
            self._known[key] = len(self.transitions)
            self.transitions += text_transitions(self.view, [row])
        return self._known[key]

    def use_all(self, phase: list[Trajectory]) -> None:
        """Use every stored transition once."""
        self.trajectories += phase
        self._use(range(len(self.transitions)))

    def use_only(self, trajectories: list[Trajectory]) -> None:
        """Use only these trajectories, each step as often as it occurred."""
        self.trajectories = trajectories
        self._use([place for steps in trajectories for place in steps])

    def use_newest(self, phase: list[Trajectory], window: int) -> None:
        """Use the `window` newest transitions, each once."""
        self.trajectories += phase
        newest = dict.fromkeys(p for steps in reversed(self.trajectories) for p in reversed(steps))
        kept = {*[*newest][:window]}
        self.trajectories = [each for each in self.trajectories if not kept.isdisjoint(each)]
        self._use(sorted(kept))

    def _use(self, places: Sequence[int]) -> None:
        self.evidence = [self.transitions[place] for place in places]
        self.places = np.array(places, dtype=np.intp)
        kinds = np.array([transition.change.kind for transition in self.evidence], dtype=object)
        order = dict.fromkeys([*self.view.kinds, *kinds.tolist()])
        self.by_kind = {k: self.places[kinds == k] for k in order if (kinds == k).any()}
        self._texts.clear()

    def as_text(self, tokens: int | None) -> str:
        """Return the newest trajectories in about `tokens` tokens, oldest first."""
        if tokens not in self._texts:
            self._texts[tokens] = "\n\n".join(reversed([*self._fitting(tokens)]))
        return self._texts[tokens]

    def _fitting(self, room: int | None) -> Iterator[str]:
        """Yield the newest trajectories that fit; if the newest is too long, its first steps."""
        for count, steps in enumerate(dict.fromkeys(reversed(self.trajectories))):
            text = self.trajectory_text(steps)
            if room is not None:
                sizes = accumulate(map(estimated_tokens, text.splitlines(keepends=True)))
                fitting = [size for size in sizes if size <= room]
                lines = text.splitlines()
                if not fitting or (count and len(fitting) < len(lines)):
                    return
                text, room = "\n".join(lines[: len(fitting)]), room - fitting[-1]
            yield text

    def trajectory_text(self, steps: Trajectory) -> str:
        """Return a trajectory as text: the first state, then actions and changes."""
        shown = [self.transitions[place] for place in steps]
        pairs = (f"- {step.action} -> {step.change.text}" for step in shown)
        return "\n".join([f"At first: {shown[0].state}", *pairs])


def _mistake(transition: TextTransition, log_probabilities: np.ndarray) -> str:
    """Return a transition with the likeliest change; "" if that is the recorded one."""
    if not transition.candidates:
        return ""
    recorded, highest = transition.change.text, float(log_probabilities.max())
    # candidates are equally likely if their log-probabilities differ by at most this
    tie_tolerance = 1e-9
    likeliest = [
        change.text
        for change, found in zip(transition.candidates, log_probabilities.tolist(), strict=True)
        if found >= highest - tie_tolerance
    ]
    if likeliest == [recorded]:
        return ""
    place = [change.text for change in transition.candidates].index(recorded)
    predicted = " or ".join(likeliest)
    # maximum number of predicted changes to name in a prompt; with more, the prompt gives their
    # number
    max_named_changes = 3
    if len(likeliest) > max_named_changes:
        predicted = f"nothing definite: {len(likeliest)} changes are equally likely"
    return (
        f"State: {transition.state}\nAction: {transition.action}\nRecorded: {recorded} "
        f"(probability {exp(log_probabilities[place]):.2g})\nPredicted: {predicted}"
    )


ITEM = re.compile(r"\s*(?:[-*+\N{BULLET}]|\(?\d{1,3}[.):])\s+(?=\S)")
"""Marker at the start of a list item."""

THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
"""Reasoning that some models write before their answer."""


def read_rules(text: str) -> str:
    """Return the rules in an answer, one per line.

    The rules are in a fenced block, in a list, or on all lines. Markers of lists and emphasis are
    removed, and so are an introduction that ends with a colon and text around a list.
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
    if not rules or (len(rules) == 1 and not introduced):  # a single marker is not a list
        rules = [ITEM.sub("", line) for line in lines[introduced:]]
    kept = (clean(re.sub(r"\*\*|`", "", rule)).strip() for rule in rules)
    return "\n".join(filter(None, kept))


def _equal(one: float, other: float) -> bool:
    equal_tolerance = 1e-12  # relative difference below which two log-likelihoods count as equal
    return one == other or abs(one - other) <= equal_tolerance * max(abs(one), abs(other))
