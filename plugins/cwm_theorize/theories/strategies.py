"""Searches among rules in words: chains, weighted samples, the best of many (Levy et al., 2025).

All of them look for rules by how likely they are once the evidence is seen: p(h) is proportional
to exp L(h), L being the log-likelihood of the evidence and the logarithm of what rules were held
for before it (as published that is the same for all). A problem that knows none is searched by
the logarithm of the score instead.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log, log1p
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import logsumexp, softmax

from cwm_cli.errors import CwmError
from cwm_cli.presets import FROM_PRESET
from cwm_cli.search.contracts import (
    EVIDENCE,
    GENERATE,
    IMPROVE,
    ROOT,
    START,
    Move,
    Node,
    Strategy,
    Verdict,
)

PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "problem.policy": "phase",
        "problem.subset": 5,
        "problem.evidence_tokens": None,
        "problem.simplicity": 0.0,
        "problem.worst": 0,
        "theorist.temperature": 1.0,
        "theorist.top_p": 1.0,
        "theorist.max_tokens": 200,
        "experimenter.environments": 15,
        "experimenter.steps": 240,
        "experimenter.learning_rate": 5e-4,
        "experimenter.clip": 0.2,
        "experimenter.entropy": 0.01,
    }
)
"""What rules were weighed by, how they were sampled, and how curiosity collected and learned."""


def likelihood_of(verdict: Verdict) -> float:
    """Return L, which is -inf for what could not be weighed."""
    if verdict.is_bug:
        return -inf
    if verdict.log_likelihood is not None:
        return verdict.log_likelihood + verdict.log_prior
    return log(verdict.score) if verdict.score > 0 else -inf


@dataclass
class Particle:
    """A chain: the node that it stands at, none at first, and how often it might have moved."""

    node: Node | None = None
    tried: int = 0

    @property
    def place(self) -> int:
        """The number of the node that it stands at."""
        return ROOT if self.node is None else self.node.id


@dataclass
class Metropolis(Strategy):
    """Chains that move from rules to better ones, and now and then to worse ones.

    Each particle begins with rules from scratch, h, and is proposed others that these inspire,
    h'. With u drawn evenly from [0, 1), each time anew, it moves where log u < w:

        w = L(h') - L(h)                                   as published
        w = L(h') - L(h) - log q(h'|h) + log q(h|h')       with `hastings`

    Only the latter visits rules in proportion to their likelihood: q, the chance of a proposal, is
    hardly ever the same in both directions. Particles know nothing of each other. Where more
    proposals are in flight than there are particles, those for one that has moved meanwhile are
    passed over.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PUBLISHED}
    moves = (GENERATE, IMPROVE)

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the problem, the theorist and the
    experimenter."""
    particles: Annotated[int, Field(ge=1)] = 1
    """Number of chains."""
    hastings: bool = False
    """Correct for the probabilities of the proposal and its reverse; needs a theorist that knows
    them. Published: false."""
    accepted: int = field(default=0, init=False)
    """How often a particle moved."""
    _particles: list[Particle] = field(init=False, repr=False)
    _told: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with particles that stand nowhere."""
        super().__post_init__()
        self._particles = [Particle() for _ in range(self.particles)]

    @property
    def repeats(self) -> bool:
        """Rules that are not left inspire others again and again."""
        return True

    @property
    def corrects(self) -> bool:
        """Whether it makes up for the chances of its proposals."""
        return self.hastings

    def held(self) -> Sequence[int]:
        """Return where the particles stand."""
        return sorted({particle.place for particle in self._particles} - {ROOT})

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Have rules proposed to the particle that waits for the fewest, then that had the fewest.

        The draws are for whoever answers; what is left to chance here follows from the answer.
        """
        awaited = Counter(move.parent for move in pending)
        standing = Counter(particle.place for particle in self._particles)
        node = min(
            self._particles, key=lambda one: (awaited[one.place] / standing[one.place], one.tried)
        ).node
        if node is None:
            return Move(GENERATE)
        return Move(IMPROVE, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Move a particle, or leave it where it is."""
        at = [particle for particle in self._particles if particle.place == node.parent]
        if not node.asked:
            if node.action in (EVIDENCE, START):
                for particle in at:
                    particle.node = node
            return
        if not at:
            self._told[node.id] = "passed over"
            return
        particle = min(at, key=lambda one: one.tried)
        particle.tried += 1
        moves = self._moves(particle, node)
        if moves:
            self.accepted += particle.node is not None
            particle.node = node
        self._told[node.id] = "accepted" if moves else "rejected"

    def state(self, node: int) -> str:
        """Say what became of a proposal, and who stands there."""
        here = [str(n) for n, one in enumerate(self._particles, 1) if one.place == node]
        if not here:
            return self._told.get(node, "")
        return "held" if self.particles == 1 else f"held by {', '.join(here)}"

    def _moves(self, particle: Particle, node: Node) -> bool:
        """Whether a particle moves to the rules of a node."""
        new = likelihood_of(node.verdict)
        if particle.node is None or new == -inf:
            return new > -inf
        weight = new - likelihood_of(particle.node.verdict)
        if self.hastings:
            if node.forward is None or node.backward is None:
                raise CwmError(
                    "the theorist provides no probabilities of its proposals: leave out --hastings"
                )
            weight += node.backward - node.forward
        assert node.seed is not None
        return log1p(-np.random.default_rng([node.seed, 1]).random()) < weight


class Sample(NamedTuple):
    """Rules that were drawn: L, and what is added to it to get their log-weight."""

    likelihood: float
    added: float

    @property
    def weight(self) -> float:
        """The logarithm of the weight."""
        return self.likelihood + self.added


@dataclass
class Importance(Strategy):
    """Rules drawn from scratch, weighted by how much likelier they are than they were to be drawn.

    The weight of rules h is exp L(h) / q(h), q being the chance that they were drawn. When the
    evidence grows, `particles` of them are drawn anew by their weights, which are shared evenly
    among these, and then multiplied by what the likelihood has changed by. What is drawn after
    that joins them, so that at any time the weights are those of all that was ever drawn.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PUBLISHED}
    moves = (GENERATE,)

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the problem, the theorist and the
    experimenter."""
    particles: Annotated[int, Field(ge=1)] = 5
    """Number of rule sets to keep when data are added."""
    resampling: Literal["systematic", "multinomial"] = "systematic"
    """Resampling method. systematic: at even distances along the weights, with the least noise;
    multinomial: each one independently."""
    _samples: dict[int, Sample] = field(default_factory=dict, init=False, repr=False)
    _seed: int = field(default=0, init=False, repr=False)

    @property
    def repeats(self) -> bool:
        """All rules answer the same question: they are independent."""
        return True

    @property
    def weighs_proposals(self) -> bool:
        """It has to know how likely its proposals were."""
        return True

    @property
    def weights(self) -> dict[int, float]:
        """The weight of each node that counts at present, 1 in total."""
        return dict(zip(self._samples, softmax(self._logarithms()), strict=True))

    @property
    def effective_size(self) -> float:
        """How many samples of equal weight would say as much: (sum w)^2 / sum w^2."""
        weights = np.array(list(self.weights.values()))
        return float(1 / (weights**2).sum()) if len(weights) else 0.0

    def held(self) -> Sequence[int]:
        """Return the rules that are kept when the evidence grows."""
        return sorted(self._kept())

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Have rules drawn from scratch."""
        return Move(GENERATE)

    def update(self, node: Node) -> None:
        """Weigh what was drawn, or, with what else is kept, by evidence that has grown."""
        likelihood = likelihood_of(node.verdict)
        if node.action == EVIDENCE:
            kept = self._kept()
            if node.parent in kept:
                added = kept.pop(node.parent).added
                self._samples = kept | {node.id: Sample(likelihood, added)}
        elif node.asked and likelihood > -inf:
            if node.forward is None:
                raise CwmError(
                    "the theorist provides no probabilities of its proposals: choose --method "
                    "best-of"
                )
            assert node.seed is not None
            self._samples[node.id], self._seed = Sample(likelihood, -node.forward), node.seed

    def state(self, node: int) -> str:
        """Say how much a sample weighs."""
        return f"weight {self.weights[node]:.3f}" if node in self._samples else ""

    def _logarithms(self) -> np.ndarray:
        return np.array([sample.weight for sample in self._samples.values()])

    def _kept(self) -> dict[int, Sample]:
        """Return the samples that remain: all, unless there are more than `particles`."""
        if len(self._samples) <= self.particles:
            return dict(self._samples)
        logarithms, rng = self._logarithms(), np.random.default_rng([self._seed, 1])
        ends = np.cumsum(softmax(logarithms))
        if self.resampling == "systematic":
            points = (np.arange(self.particles) + rng.random()) / self.particles
        else:
            points = rng.random(self.particles)
        places = Counter(np.searchsorted(ends[:-1], points, side="right").tolist())
        share, nodes = logsumexp(logarithms) - log(self.particles), list(self._samples)
        return {
            nodes[place]: Sample(
                likelihood := self._samples[nodes[place]].likelihood,
                share + log(times) - likelihood,
            )
            for place, times in sorted(places.items())
        }


@dataclass
class BestOf(Strategy):
    """Rules drawn from scratch, the likeliest of which count: nothing is made of the others.

    It was published as importance sampling. There the best rules of a phase are forgotten with it.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {"forget": False},
        "paper": {"forget": True, **PUBLISHED},
    }
    moves = (GENERATE,)

    preset: Literal["default", "paper"] = "default"
    """Preset that gives the values of unset options of the strategy, the problem, the theorist and
    the experimenter."""
    forget: bool = FROM_PRESET
    """Drop the best rules of earlier phases when data are added, as published."""

    @property
    def repeats(self) -> bool:
        """All rules answer the same question: they are independent."""
        return True

    @property
    def forgets(self) -> bool:
        """Whether the best rules of before do not compete with those to come."""
        return self.forget

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Have rules drawn from scratch."""
        return Move(GENERATE)
