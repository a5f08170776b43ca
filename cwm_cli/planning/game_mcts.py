"""Monte Carlo tree search for games of two players with perfect information.

The value of an action belongs to the player who takes it, and is negated for the opponent
(negamax). Selection is UCT (Kocsis and Szepesvari, 2006) on a graph of states, so that positions
that several orders of moves reach share one node (UCT1; Childs et al., 2008). Proven results of
finished games are backed up exactly (MCTS-Solver; Winands et al., 2008).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, ClassVar

from cwm_cli.data.spaces import Space
from cwm_cli.planning.mcts import TreeNode, select_ucb
from cwm_cli.planning.model import Model, Step, name
from cwm_cli.planning.planner import Planner, Situation, Unsuited

MAX_STATES = 50_000
"""A graph with more states is cleared before the next decision, so that memory stays bounded."""


@dataclass(frozen=True)
class GameMcts(Planner):
    """Monte Carlo tree search for two players who gain opposite rewards.

    A decision ends after `simulations` simulations or `budget` steps of the model, or when the
    result of every action is proven.
    """

    NEEDS: ClassVar[str] = "a game of two players"
    ALONE: ClassVar[bool] = True
    TWO_PLAYERS: ClassVar[bool] = True

    simulations: int = 1000
    """Maximum number of simulations per decision."""
    budget: int = 5000
    """Number of model steps after which a decision ends."""
    rollout: int = 200
    """Maximum number of moves in a rollout; a longer game counts as a draw."""
    exploration: float = 1.0
    """Weight of the exploration term for actions with few visits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.simulations, self.rollout, self.budget) < 1:
            raise ValueError("simulations, budget and rollout must be at least 1")
        if not 0 <= self.exploration < inf:
            raise ValueError("exploration must not be negative")

    @classmethod
    def serves(cls, action_space: Space) -> bool:
        """Return whether actions are discrete."""
        return action_space.kind == "discrete"

    @classmethod
    def rank(cls, observation_space: Space, action_space: Space) -> float | None:
        """Return 1: it serves any game."""
        return 1.0

    def plan(self, model: Model, situations: Sequence[Situation]) -> list[list[Any]]:
        """Return the next move of each situation."""
        if not model.turn:
            raise Unsuited("is no game of two players")
        return [[self._decide(model, situation)] for situation in situations]

    def _decide(self, model: Model, situation: Situation) -> int:
        graph = situation.memory
        if graph is None:
            graph = situation.memory = GameGraph(model, self)
        found: int = graph.search(situation)
        return found


class GameNode(TreeNode):
    """A state of a game; `values` are the mean returns of its player after each action.

    `children` has the reward of its player and the next state after each known action. `proven`
    has the exact result of each action, None if unknown, and `result` the result of the state.
    """

    __slots__ = ("children", "player", "proven", "result")

    def __init__(self, state: Any, actions: Sequence[int], player: int) -> None:
        super().__init__(state, actions, 0.0)
        self.player = player
        self.children: list[tuple[float, GameNode] | None] = [None] * len(actions)
        self.proven: list[float | None] = [None] * len(actions)
        self.result: float | None = None

    def seen_from(self, player: int, value: float) -> float:
        """Return a value of this node's player as the value of a player."""
        return value if player == self.player else -value


class GameGraph:
    """The states of a game that were searched, which are reused for the next decision."""

    def __init__(self, model: Model, options: GameMcts) -> None:
        self._model, self._options = model, options
        self._random = Random(0)  # noqa: S311  # no secret
        self._nodes: dict[Any, GameNode] = {}
        self._largest = 0.0  # absolute value of all rewards so far

    def search(self, situation: Situation) -> int:
        """Return the best action: a proven win, or else the action that was tried most often.

        Raises:
            Unsuited: If the model does not list its legal actions.
        """
        model, options = self._model, self._options
        self._random.seed(int(situation.rng.integers(2**63)))
        if len(self._nodes) > MAX_STATES:
            self._nodes.clear()
        root, before = self._root(situation), model.counter[0]
        if not root.actions:  # the model ended the game, the environment did not
            return int(model.action_space.low[0])
        for _ in range(options.simulations):
            if len(root.actions) == 1 or root.result is not None:
                break
            self._simulate(root)
            if model.counter[0] - before >= options.budget:
                break
        return root.actions[self._best(root)]

    def _best(self, node: GameNode) -> int:
        """Return the index of the best action: proven values count before the number of trials."""
        places = range(len(node.actions))
        proven = [place for place in places if node.proven[place] is not None]
        unproven = [place for place in places if node.proven[place] is None]

        def rank(place: int) -> tuple[float, float]:
            return node.values[place], node.tried[place]

        if not unproven or node.result is not None:
            return max(proven, key=rank)
        best = max(unproven, key=lambda place: (node.tried[place], node.values[place]))
        return max([*proven, best], key=rank)

    def _root(self, situation: Situation) -> GameNode:
        """Return the node of a situation, with the legal actions that the model lists."""
        found = self._nodes.get(name(situation.state))
        if found is not None and not found.terminated:
            return found
        self._model.stand(situation.state)
        legal = self._model.legal()
        if legal is None:
            raise Unsuited("does not list its legal actions (a program needs `legal_actions`)")
        return self._node(situation.state, legal, self._model.player())

    def _node(self, state: Any, legal: Sequence[int], player: int) -> GameNode:
        """Return the node of a state; new nodes get the legal actions and the player to move."""
        known = name(state)
        if known not in self._nodes:
            self._nodes[known] = GameNode(state, legal, player)
        return self._nodes[known]

    def _simulate(self, root: GameNode) -> None:
        """Select down to a new state, value it by a random game, and back up."""
        path: list[tuple[GameNode, int]] = []
        node, is_new = root, False
        while node.actions and not (is_new or node.terminated or node.result is not None):
            if len(path) == self._options.rollout:  # states may recur without an end
                break
            index = self._select(node)
            path.append((node, index))
            child = node.children[index]
            is_new = child is None
            node = (child or self._expand(node, index))[1]
        value = node.result or 0.0
        if is_new and node.result is None:
            # The model has just reached the node: both players continue at random.
            value = self._model.play_randomly(self._random.getrandbits(32), self._options.rollout)
            self._largest = max(self._largest, abs(value))
        self._back_up(path, node, value)

    def _select(self, node: GameNode) -> int:
        """Return the index of an action by UCB1, among those without a proven result."""
        places = [place for place, value in enumerate(node.proven) if value is None]
        if len(places) == len(node.actions):
            return select_ucb(node, self._options.exploration * self._largest, self._random)
        unproven = TreeNode(None, [node.actions[place] for place in places])
        unproven.tried = [node.tried[place] for place in places]
        unproven.values = [node.values[place] for place in places]
        scale = self._options.exploration * self._largest
        return places[select_ucb(unproven, scale, self._random)]

    def _expand(self, node: GameNode, index: int) -> tuple[float, GameNode]:
        """Take an action for the first time; return its reward and the next state."""
        model = self._model
        model.stand(node.state)
        step = model.step(node.actions[index])
        if step.terminated:
            child = GameNode(None, (), node.player)
            child.terminated, child.result = True, 0.0
        else:
            player = int(step.observation[model.turn])
            child = self._node(model.here(), self._legal(step), player)
            if not child.actions:  # no move is left, although the model does not end the game
                child.result = 0.0
        self._largest = max(self._largest, abs(step.reward))
        node.children[index] = step.reward, child
        return step.reward, child

    def _legal(self, step: Step) -> Sequence[int]:
        """Return the legal actions after a step; all actions if the model lists none."""
        if step.valid is not None:
            return step.valid
        space = self._model.action_space
        return range(int(space.low[0]), int(space.high[0]) + 1)

    def _back_up(self, path: Sequence[tuple[GameNode, int]], node: GameNode, value: float) -> None:
        """Add a value of the last node's player to the nodes of a path, and prove results."""
        for parent, index in reversed(path):
            found = parent.children[index]
            assert found is not None
            reward, child = found
            value = reward + child.seen_from(parent.player, value)
            parent.visits += 1
            parent.tried[index] += 1
            parent.values[index] += (value - parent.values[index]) / parent.tried[index]
            if child.result is not None:
                exact = reward + child.seen_from(parent.player, child.result)
                parent.proven[index] = parent.values[index] = exact
                self._prove(parent)

    def _prove(self, node: GameNode) -> None:
        """Set the result of a node if all its actions are proven, or one action wins.

        An action wins if its result is the largest that any game had so far.
        """
        known = [value for value in node.proven if value is not None]
        if len(known) == len(node.actions) or (max(known) > 0 and max(known) >= self._largest):
            node.result = max(known)
