"""Rewrite the program of a learner: when new rows justify it, and with the recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cwm_cli.data.dataset import Dataset
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.text import percent
from cwm_learn.outcomes import PlayComparison
from cwm_learn.records import WritingRecord

if TYPE_CHECKING:
    from cwm_learn.actors.base import Actor, Knowledge
    from cwm_learn.certificate import EpisodeRecord
    from cwm_learn.journal_replay import LearnerJournal
    from cwm_learn.writing import ProgramWriter, WrittenProgram


class ProgramRewriter:
    """Decides when to rewrite the program of a learner, and writes it.

    A program also explains the rows of an earlier environment, as long as these do not contradict
    the rows of this environment. During a replay of the journal, recorded programs are returned.

    Attributes:
        new_mismatches: Mismatches since the last program, without those by chance.
    """

    def __init__(
        self, known: Knowledge, actor: type[Actor], writer: ProgramWriter, journal: LearnerJournal
    ) -> None:
        self.new_mismatches = 0
        self._known, self._writer, self._journal = known, writer, journal
        self._can_be_stochastic = actor.stochastic_variant() is not None
        self._overrides_program = actor.OVERRIDES_PROGRAM
        self._rows_at_writing, self._wrong_fraction = 0, 0.0
        self._comparison = PlayComparison()
        self._earlier = list(journal.run.earlier_rows() or ())
        self._earlier_writer = replace(writer, model=None)

    def is_due(self, actor: Actor, *, is_mid_episode: bool) -> bool:
        """Return whether there are enough new rows for another program.

        A program that mispredicts more rows needs more new rows.
        """
        new_rows = len(self._known.rows) - self._rows_at_writing
        if self._known.random_rows and self._can_be_stochastic:
            # the fraction in stochastic environments: only many rows show that probabilities are
            # wrong
            stochastic_new_rows_fraction = 0.5
            return new_rows >= stochastic_new_rows_fraction * self._rows_at_writing
        # Rewrite the program in mid-episode after this fraction of new rows, so that the total
        # writing time grows linearly with the number of rows. Between episodes, rewrite after any
        # mismatch.
        fraction = 0.1 if is_mid_episode else 0.0
        if actor.OVERRIDES_PROGRAM:
            # also between episodes: rules from few more rows mislead actors that override the
            # program with observed rows more often than they help
            fraction = 0.25
        # The minimum fraction for a program that mispredicts all rows, and proportionally less for
        # others: such a program lacks rows, and takes longest to write. With 1, a two-link arm took
        # 27 more steps.
        wrong_new_rows_fraction = 0.3
        fraction = max(fraction, wrong_new_rows_fraction * self._wrong_fraction)
        return self.new_mismatches > 0 and new_rows >= fraction * self._rows_at_writing

    def restart(self, written: WrittenProgram) -> bool:
        """Count new rows and mismatches from this program on.

        Returns:
            Whether a misleading program became acceptable, or an acceptable one misleading.
        """
        was_misleading = self._known.is_misleading
        self._rows_at_writing, self.new_mismatches = len(self._known.rows), 0
        self._wrong_fraction = float(written.wrong.mean()) if len(written.wrong) else 0.0
        if self._wrong_fraction <= 0.5:
            self._comparison.plays.clear()
            self._known.plays_badly = self._comparison.is_worse
        if self._overrides_program and len(written.unexplained):
            self._known.unexplained_fraction = float(written.unexplained.mean())
        if self._known.is_misleading:
            self._journal.note_once(
                f"the program mispredicts {percent(self._known.unexplained_fraction)} of the "
                "transitions: until there is a better one, plans use recorded transitions only",
                key="misleading",
            )
        return was_misleading != self._known.is_misleading

    def compare_play(self, episode: EpisodeRecord) -> None:
        """Replace play by random actions if it is worse, until a program predicts most rows."""
        self._comparison.add(episode)
        self._known.plays_badly = self._comparison.is_worse
        if self._known.plays_badly:
            self._journal.note_once(
                "the program mispredicts most steps, and its play returned less than other "
                "episodes: actions are random until there is a better program"
            )

    def detect_randomness(self) -> None:
        """Switch to stochastic programs if the rows are random and an actor supports them."""
        can_switch = self._writer.contract == "plain" and self._can_be_stochastic
        if self._known.random_rows and can_switch:
            found = find_contract(self._journal.run.dataset_of(self._known.rows))
            if found.contract == "chance":
                self._writer.contract = "chance"
                self._journal.note(f"outcomes are random: {found.words(self._known.names)}")

    def write(self, rows: Dataset, programs: Sequence[str]) -> tuple[WrittenProgram, float]:
        """Return a program for the rows, and the seconds that it took.

        Earlier rows are dropped as soon as a program without them explains more of the rows.
        """
        if not self._earlier:
            return self._write(self._writer, rows, programs)
        self._earlier_writer.contract = self._writer.contract
        first, count = 1 + max(row.episode for row in self._earlier), len(self._earlier)
        earlier = [row._replace(episode=row.episode - first) for row in self._earlier]
        combined = self._journal.run.dataset_of([*earlier, *rows])
        written, seconds = self._write(self._earlier_writer, combined, programs)
        unexplained, wrong = written.unexplained[count:], written.wrong[count:]
        written = written._replace(unexplained=unexplained, wrong=wrong)
        if not unexplained.any():
            return written, seconds
        alone, more_seconds = self._write(self._writer, rows, programs)
        if alone.unexplained.sum() < unexplained.sum():
            self._earlier.clear()
            words = "rows of the previous environment contradict this one and are left out"
            self._journal.note(words)
            written = alone
        return written, seconds + more_seconds

    def _write(
        self, writer: ProgramWriter, rows: Dataset, programs: Sequence[str]
    ) -> tuple[WrittenProgram, float]:
        record = self._journal.recorded(WritingRecord)
        if record is not None:
            return writer.repeat(record, rows, programs), record.seconds
        written, record = writer.write_and_record(rows, programs)
        self._journal.append(record)
        return written, record.seconds
