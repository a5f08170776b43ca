"""Search strategies for rules in words: chains, weighted samples, best of many.

All strategies use the posterior of rules h given the evidence (Levy et al., 2025): p(h) is
proportional to exp L(h), where L is the log-likelihood of the evidence plus the log-prior (as
published, the prior is uniform). For a problem without likelihoods, L is the logarithm of the
score.
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
"""Published options of scoring, of sampling by the theorist, and of the experimenter
`curiosity`."""


def likelihood_of(verdict: Verdict) -> float:
    """Return L; -inf if the candidate could not be scored."""
    if verdict.is_bug:
        return -inf
    if verdict.log_likelihood is not None:
        return verdict.log_likelihood + verdict.log_prior
    return log(verdict.score) if verdict.score > 0 else -inf


@dataclass
class Particle:
    """A chain: its current node (None at first), and the number of its proposals."""

    node: Node | None = None
    tried: int = 0

    @property
    def node_id(self) -> int:
        """The ID of the current node."""
        return ROOT if self.node is None else self.node.id


@dataclass
class Metropolis(Strategy):
    """Markov chains that accept better rules always, and worse rules sometimes.

    Each particle starts with rules from scratch, h. Each proposal h' is derived from the current
    rules. With u drawn from [0, 1) for each proposal, the particle moves if log u < w:

        w = L(h') - L(h)                                   as published
        w = L(h') - L(h) - log q(h'|h) + log q(h|h')       with `hastings`

    Only the latter visits rules in proportion to their posterior, because the proposal probability
    q is usually asymmetric. Particles are independent. If more proposals are in flight than there
    are particles, a proposal from a node that its particle has left is passed over.
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
    """Number of moves of all particles."""
    _particles: list[Particle] = field(init=False, repr=False)
    _statuses: dict[int, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._particles = [Particle() for _ in range(self.particles)]

    @property
    def repeats(self) -> bool:
        """Return True: the same rules may receive several proposals."""
        return True

    @property
    def corrects(self) -> bool:
        """Whether moves correct for proposal probabilities."""
        return self.hastings

    def held(self) -> Sequence[int]:
        """Return the current nodes of the particles."""
        return sorted({particle.node_id for particle in self._particles} - {ROOT})

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Select the particle with the fewest pending proposals, then with the fewest proposals.

        The theorist uses the random draws; acceptance uses the seed of the answer.
        """
        awaited = Counter(move.parent for move in pending)
        standing = Counter(particle.node_id for particle in self._particles)
        node = min(
            self._particles,
            key=lambda one: (awaited[one.node_id] / standing[one.node_id], one.tried),
        ).node
        if node is None:
            return Move(GENERATE)
        return Move(IMPROVE, node.id, node.program, node.verdict)

    def update(self, node: Node) -> None:
        """Move a particle to the node, or reject the node."""
        at = [particle for particle in self._particles if particle.node_id == node.parent]
        if not node.asked:
            if node.action in (EVIDENCE, START):
                for particle in at:
                    particle.node = node
            return
        if not at:
            self._statuses[node.id] = "passed over"
            return
        particle = min(at, key=lambda one: one.tried)
        particle.tried += 1
        moves = self._accepts(particle, node)
        if moves:
            self.accepted += particle.node is not None
            particle.node = node
        self._statuses[node.id] = "accepted" if moves else "rejected"

    def state(self, node: int) -> str:
        """Return the status of a proposal, or the particles at a node."""
        here = [str(n) for n, one in enumerate(self._particles, 1) if one.node_id == node]
        if not here:
            return self._statuses.get(node, "")
        return "held" if self.particles == 1 else f"held by {', '.join(here)}"

    def _accepts(self, particle: Particle, node: Node) -> bool:
        """Return whether a particle moves to the rules of a node."""
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
    """Sampled rules: L, and the term that is added to get the log-weight."""

    likelihood: float
    added: float

    @property
    def weight(self) -> float:
        """The log-weight."""
        return self.likelihood + self.added


@dataclass
class Importance(Strategy):
    """Importance sampling: rules from scratch, weighted by exp L(h) / q(h).

    q(h) is the proposal probability of rules h. When the evidence grows, `particles` samples are
    drawn by weight and share the total weight equally. Then each weight is multiplied by the change
    of its likelihood. Later samples are added, so that the weights always represent all samples so
    far.
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
        """Return True: all samples answer the same question and are independent."""
        return True

    @property
    def weighs_proposals(self) -> bool:
        """Return True: the strategy needs the probabilities of its proposals."""
        return True

    @property
    def weights(self) -> dict[int, float]:
        """The normalised weight of each current node."""
        return dict(zip(self._samples, softmax(self._log_weights()), strict=True))

    def held(self) -> Sequence[int]:
        """Return the nodes that remain when the evidence grows."""
        return sorted(self._remaining())

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Request rules from scratch."""
        return Move(GENERATE)

    def update(self, node: Node) -> None:
        """Add a sample, or reweight a remaining sample on new evidence."""
        likelihood = likelihood_of(node.verdict)
        if node.action == EVIDENCE:
            kept = self._remaining()
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
        """Return the weight of a sample."""
        return f"weight {self.weights[node]:.3f}" if node in self._samples else ""

    def _log_weights(self) -> np.ndarray:
        return np.array([sample.weight for sample in self._samples.values()])

    def _remaining(self) -> dict[int, Sample]:
        """Return the remaining samples: all, or `particles` samples after resampling."""
        if len(self._samples) <= self.particles:
            return dict(self._samples)
        logarithms, rng = self._log_weights(), np.random.default_rng([self._seed, 1])
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
    """Rules from scratch; only the best rules count.

    Published as importance sampling. There, the best rules of a phase are forgotten after it.
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
        """Return True: all rules answer the same question and are independent."""
        return True

    @property
    def forgets(self) -> bool:
        """Whether earlier best rules do not compete with later rules."""
        return self.forget

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Request rules from scratch."""
        return Move(GENERATE)
