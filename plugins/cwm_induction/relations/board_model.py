"""Models of boards: stages, consequences, other quantities and payments."""

from dataclasses import dataclass, field

import numpy as np

from cwm_induction.continuous.samples import Array
from cwm_induction.relations.boards import Boards
from cwm_induction.relations.consequences import StageConsequence
from cwm_induction.relations.layout import BoardLayout
from cwm_induction.relations.payments import Payments
from cwm_induction.relations.quantities import RelationQuantity
from cwm_induction.relations.stages import Names, RuleStage
from cwm_induction.relations.turning import RingTurn
from cwm_induction.relations.vocabulary import start_names


@dataclass
class BoardModel:
    """A board, the stages of a step in order, other quantities, rewards and ends."""

    layout: BoardLayout
    stages: list[RuleStage] = field(default_factory=list)
    turn: RingTurn | None = None
    consequence: StageConsequence | None = None
    quantities: list[RelationQuantity] = field(default_factory=list)
    payments: Payments | None = None

    def predict(self, before: Array, action: Array) -> tuple[Array, Names]:
        """Return the next observations, and the names that payments may use."""
        names = start_names(self.layout, before, action)
        for stage in self.stages:
            advance(names, stage.apply(names))
        names["middle"] = names["board"]
        if self.turn:
            advance(names, self.turn.apply(names))
        if self.consequence:
            board, events = self.consequence.apply(names["board"].values)
            names |= events
            advance(names, board)
        board, ground = names["board"].values, self.layout.ground
        shown = ground.shown(board) if ground else board
        names["new"] = Boards(shown, np.arange(len(board)))
        after, first = before.copy(), self.layout.first
        after[:, first : first + self.layout.cells] = shown.reshape(len(board), -1)
        for quantity in self.quantities:
            after[:, quantity.component] = quantity.values(names, len(before))
        for component in self.layout.extras:
            names[f"new_x{component}"] = after[:, component]
        return after, names


def advance(names: Names, board: Array) -> None:
    """Replace the boards of the names by later boards."""
    names["board"] = Boards(board, np.arange(len(board)))
