"""Trees of GIF-MCTS that tests build node by node."""

from dataclasses import dataclass, field

import numpy as np

from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import ROOT, Node, Usage, Verdict
from cwm_gif_mcts.strategy import GifMcts

BUG = Verdict(score=0.0, failure=Failure(kind="step_error", message="KeyError: 3", line=4))


def program(lines, name="x"):
    return "".join(f"{name} = {number}\n" for number in range(lines))


def published(**options):
    """Return the tree of prefixes, with the details that are ours unless a preset is named."""
    return GifMcts(**{"selection": "mean", "prior_generate": 0.5} | options)


@dataclass
class Grown:
    """A strategy, and the nodes that it was taught in order."""

    strategy: GifMcts = field(default_factory=published)
    nodes: list[Node] = field(default_factory=list)

    def add(self, action, score, parent=ROOT, *, lines=20, asked=True, name="", **judged):
        """Teach a node, which raised when its score is None, and return its id."""
        number = len(self.nodes)
        mismatch = Failure(kind="mismatch", message="row 1")
        verdict = BUG if score is None else Verdict(score=score, failure=mismatch, **judged)
        node = Node(
            id=number,
            step=number,
            parent=parent,
            action=action,
            program=program(lines, name or f"x{number}"),
            verdict=verdict,
            prompt="",
            usage=Usage(),
            asked=asked,
        )
        self.nodes.append(node)
        self.strategy.update(node)
        return number

    def moves(self, *pending, draws=40):
        """Return the moves that `draws` generators lead to."""
        rngs = map(np.random.default_rng, range(draws))
        found = (self.strategy.select(rng, pending) for rng in rngs)
        return {(move.action, move.parent) for move in found}

    def move(self, *pending):
        return self.strategy.select(np.random.default_rng(0), pending)

    def states(self):
        return [self.strategy.state(node.id) for node in self.nodes]

    def values(self):
        """Return the visits and the value of every node."""
        branches = (self.strategy._tree[node.id] for node in self.nodes)
        return {branch.id: (branch.visits, branch.value) for branch in branches}

    def bounds(self, number=ROOT):
        """Return the bound of all that selection may do at a node: actions, and open children.

        Of children visited equally often only the best are listed, since no other can be chosen.
        """
        branch = self.strategy._tree[number]
        found = {}
        for bound, action, start, end in self.strategy._options(branch):
            children = [number for _, _, number in branch.open[start:end]]
            found |= dict.fromkeys([action] if action else children, bound)
        return found
