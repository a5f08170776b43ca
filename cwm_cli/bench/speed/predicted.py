"""Predictions of a language model, checked as those of a program are."""

import numpy as np

from cwm_cli.bench.speed.answer import Unreadable, read_answer
from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation import Metric, Score
from cwm_cli.sandbox.answers import Complaint, mask_writer, reward_of, terminated_of, writer
from cwm_cli.sandbox.job import prediction_layout
from cwm_cli.sandbox.prediction import AskedRows, merge_answers
from cwm_cli.worlds import Predictions


class Predicted:
    """What was predicted for the rows of a dataset; a row without a prediction is all wrong."""

    def __init__(self, rows: Dataset) -> None:
        self._rows = rows
        space, valid = rows.observation_space, rows.has_valid_actions
        layout = prediction_layout(space, len(rows), rows.action_space.count if valid else 0)
        self._slots = layout.views(bytearray(layout.size))
        leaves = space.leaves("next_observations")
        self._write = writer(space, (self._slots[leaf.name] for leaf in leaves))
        self._write_valid = (
            mask_writer(rows.action_space, self._slots["valid_actions"]) if valid else None
        )
        self._is_read = np.zeros(len(rows), dtype=np.bool_)

    def take(self, row: int, text: str) -> str:
        """Read the prediction of a row from an answer; return what is wrong with it, or nothing."""
        try:
            answer = read_answer(text, with_valid=self._write_valid is not None)
            self._write(row, answer.observation)
            self._slots["rewards"][row] = reward_of(answer.reward)
            self._slots["terminations"][row] = terminated_of(answer.terminated)
            if self._write_valid:
                self._write_valid(row, answer.valid_actions)
        except (Complaint, Unreadable) as error:
            return str(error)
        self._is_read[row] = True
        return ""

    def score(self, metric: Metric, counted: np.ndarray) -> Score:
        """Score the rows that are counted."""
        every = AskedRows(np.arange(len(self._rows)), np.empty(0, dtype=np.int64))
        columns = merge_answers(self._rows, [(every, self._slots)])
        rows = self._rows[counted]
        predictions = {name: column[counted] for name, column in columns.items()}
        return metric.score(Predictions(predictions, answered=self._is_read[counted]), rows)
