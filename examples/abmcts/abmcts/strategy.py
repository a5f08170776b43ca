"""Adaptive branching Monte Carlo tree search (AB-MCTS-A), by the package TreeQuest.

Source: Inoue et al., Wider or Deeper? Scaling LLM Inference-Time Compute with Adaptive Branching
Tree Search, 2025, arXiv 2503.04412.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

import numpy as np
from treequest import ABMCTSA
from treequest.algos.tree import Node as TreeNode

from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, ROOT, Move, Node, Strategy

ACTIONS = ["completion"]
"""TreeQuest's actions are alternative generators, such as several models. Here is one."""

_GLOBAL_RANDOMNESS = Lock()


@dataclass
class AbMcts(Strategy):
    """Searches by adaptive branching: at each node, write a new child or descend (AB-MCTS-A).

    The nodes of the tree are programs. From the root a program is written from scratch, from any
    other node it is improved, or fixed if it raised an exception. Both choices have a posterior
    distribution of the score, and Thompson sampling selects one (node aggregation).

    TreeQuest learns from every judged program, also from starts and refinements, which cost no
    completion. Moves in flight do not count, as in its `ask_batch`.
    """

    distribution: Literal["gaussian", "beta"] = "gaussian"
    """Distribution of scores: normal with an inverse gamma prior of its variance, or beta."""
    _search: ABMCTSA[Node] = field(init=False, repr=False)
    _state: Any = field(init=False, repr=False)
    _places: dict[int, TreeNode[Node]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Create a tree with a root."""
        super().__post_init__()
        self._search = ABMCTSA(dist_type=self.distribution)
        self._state = self._search.init_tree()
        self._places = {ROOT: self._state.tree.root}

    def select(self, rng: np.random.Generator, pending: Sequence[Move]) -> Move:
        """Descend from the root by Thompson sampling, to the parent of the next program."""
        with _seeded(int(rng.integers(2**32))):
            _, trial = self._search.ask(self._state, ACTIONS)
        # A resumed search learns from the journal only, so no trial may stay open.
        del self._state.trial_store.running_trials[trial.trial_id]
        chosen = trial.parent_state
        while chosen is not None and not chosen.program:  # a completion without a program
            chosen = self._places[chosen.id].parent.state
        if chosen is None:
            return Move(GENERATE)
        action = FIX if chosen.verdict.is_bug else IMPROVE
        return Move(action, chosen.id, chosen.program, chosen.verdict)

    def update(self, node: Node) -> None:
        """Add a judged program to the tree, and its score to the nodes above."""
        parent = self._places[node.parent]
        self._state.thompson_states.get_or_create(parent, ACTIONS)
        trial = self._state.trial_store.create_trial(parent, *ACTIONS)
        self._search.tell(self._state, trial.trial_id, (node, node.verdict.score))
        self._places[node.id] = parent.children[-1]

    def state(self, node: int) -> str:
        """Return the depth of a node and the number of its children."""
        if node not in self._places:
            return ""
        place = self._places[node]
        return f"depth {place.depth}, {len(place.children)} children"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global random numbers of NumPy, which TreeQuest draws, and restore them after."""
    with _GLOBAL_RANDOMNESS:
        before = np.random.get_state()
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)
