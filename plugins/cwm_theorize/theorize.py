"""Find rules in words that make the collected data likely, as `cwm theorize` does.

`theorize` prepares the parts, opens the run and starts `Theorizing`. In each phase, an experimenter
collects rows, the current rules are scored again on the new evidence, and a theorist proposes other
rules (WorldLLM, Levy et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.commands.choices import uncached
from cwm_cli.commands.collect import find_environment, recorded_args
from cwm_cli.commands.policies import Policy, Stage
from cwm_cli.data.dataset import Dataset, Transition, write_arrays
from cwm_cli.data.reading import UnreadableError, read_arrays
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.registry import default
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.searches import ANSWERS, PendingAnswers
from cwm_cli.runs.storage import placed
from cwm_cli.runs.store import DATASET, fresh_folder
from cwm_cli.search.answers import AnswerCache
from cwm_cli.search.contracts import Record, Remark, Switch, Usage, total
from cwm_cli.search.loop import Search
from cwm_theorize.choosing import scoring_backend
from cwm_theorize.experimenters import (
    Discoveries,
    Experimenter,
    PhaseContext,
    collect_phase,
)
from cwm_theorize.parts import (
    TheoryChoices,
    choose_backend,
    collect_held_out,
    dataset_of,
    load_held_out,
    text_stage,
)
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.ranking import Ranking
from cwm_theorize.runs import (
    PhaseRecord,
    TheorizingResult,
    TheoryConfig,
    TheoryHeader,
    TheoryRun,
)
from cwm_theorize.statistician import Statistician, TextTransition, text_transitions
from cwm_theorize.world_model import Theory

STATE = "experimenter-{}.npz"
"""File with the experimenter's state at the end of a phase, by phase number."""


def theorize(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    hastings: bool = False,
    evidence: str | None = None,
    experimenter: str = "random",
    reward: str | None = None,
    theorist: str | None = None,
    statistician: str | None = None,
    model: str | None = None,
    api_base: str | None = None,
    temperature: float | None = None,
    phases: int = 40,
    proposals: int = 5,
    particles: int | None = None,
    episodes: int = 5,
    max_steps: int = 100,
    dataset: Dataset | Path | str | None = None,
    data_seed: int = 0,
    options: Sequence[str] | Mapping[str, Any] = (),
    max_cost: float | None = None,
    cache: bool = False,
    parallel: int = 1,
    seed: int = 0,
    run: Path | str | None = None,
    new: bool = False,
    observer: Observer = SILENT,
) -> TheorizingResult:
    """Find rules in words that make the collected data likely; a stopped run continues.

    In each phase, the experimenter collects episodes, the statistician scores the current rules
    again, and the theorist proposes new rules.

    Args:
        env: Environment ID; the environment needs a text view.
        env_args: Arguments of the environment.
        method: Search strategy; default: metropolis.
        hastings: Correct for asymmetric proposal probabilities (an option of the method).
        evidence: Data that rules are scored on: cumulative, phase or window (an option of the
            problem).
        experimenter: Policy that collects data.
        reward: Reward of the experimenter `curiosity`.
        theorist: Backend that proposes rules, or PROVIDER/NAME for a language model.
        statistician: Backend that scores rules, or PROVIDER/NAME for a language model.
        model: Language model for both roles.
        api_base: Address of the model server.
        temperature: Sampling temperature of the theorist.
        phases: Number of phases, at least 1.
        proposals: Proposals per phase, at least 1.
        particles: Number of chains, or of stored samples (an option of the method).
        episodes: Episodes per phase, at least 1.
        max_steps: Maximum number of steps per episode.
        dataset: Held-out rows to measure rules on. Default: rows collected from initial states that
            no phase uses.
        data_seed: Random seed of the collected held-out rows.
        options: Options of all parts, as `OWNER.NAME=VALUE`.
        max_cost: Maximum cost in US dollars.
        cache: Reuse cached completions and scores of language models at no cost.
        parallel: Number of proposals in flight.
        seed: Random seed of the run.
        run: Folder of the run. Default: continue the newest unfinished run with equal arguments.
        new: Start a new run.
        observer: Receives the `Theorizing`, then each `CollectedPhase`, `Node` and `PhaseRecord`.

    Returns:
        The best rules, their likelihood by phase, and the effort.

    Raises:
        CwmError: An argument is invalid, or a backend fails.
    """
    if min(phases, proposals, episodes, max_steps) < 1:
        raise CwmError("phases, proposals, episodes and steps must be at least 1")
    chosen = TheoryChoices(
        method or default("method"),
        experimenter,
        choose_backend("theorist", theorist, model),
        choose_backend("statistician", statistician, model),
    )
    flags = {
        "strategy.hastings": hastings or None,
        "strategy.particles": particles,
        "problem.policy": evidence,
        "experimenter.reward": reward,
        "theorist.temperature": temperature,
        "theorist.api_base": api_base,
        "statistician.api_base": api_base,
    }
    parts = chosen.make(options, {name: v for name, v in flags.items() if v is not None})
    if cache:
        parts = parts.with_cache(AnswerCache())
        if not parts.theorist.is_language_model and not parts.statistician.is_language_model:
            observer.note(uncached(chosen.theorist.backend))
    for backend in (parts.theorist, parts.statistician):
        backend.ready(max_cost)
    spec = find_environment(env, observer)
    given = None if dataset is None else load_held_out(spec, dataset, env_args)
    args = dict(env_args or {}) if given is None else recorded_args(given, env_args)
    stage, view = text_stage(spec, args, seed=seed, max_steps=max_steps)
    with closing(stage.env):
        parts.statistician.prepare(spec, args, observer.note)
        parts.experimenter.prepare(stage)
        held_out = given or collect_held_out(spec, args, seed=data_seed, max_steps=max_steps)
        words = text_transitions(view, held_out)
        scorer = scoring_backend(parts.statistician, lambda text: observer.note(text, "Warning"))
        statistics = Statistician(view, scorer)
        # Fail before the run starts if the statistician cannot score a row.
        statistics.log_likelihoods("", words[:1], (words[0].change.text,))
        config = TheoryConfig(
            env=spec.id,
            env_args=args,
            held_out=held_out.digest,
            method=chosen.method,
            theorist=str(chosen.theorist),
            statistician=str(chosen.statistician),
            experimenter=experimenter,
            options=parts.identity,
            proposals=proposals,
            episodes=episodes,
            max_steps=stage.max_steps,
            seed=seed,
        )
        header = TheoryHeader(config=config, guide=view.guide(), versions=dict(spec.versions()))
        folder = None if run is None else placed(run)
        with _open_run(header, held_out, folder=folder, phases=phases, new=new) as opened:
            opened.report_repair(observer)
            problem = TheoryProblem(statistics, **parts.problem)
            answering = parts.theorist
            if answering.is_language_model:
                answering = PendingAnswers(answering, opened.folder / ANSWERS)
            work = Theorizing(
                run=opened,
                search=Search(problem, parts.strategy, answering, seed, parallel, max_cost),
                problem=problem,
                experimenter=parts.experimenter,
                stage=stage,
                held_out=words,
                wanted_phases=phases,
                observer=observer,
                held_out_rows=held_out,
                measures_phases=not parts.statistician.needs_model,
            )
            work.resume()
            done = len(work.phases)
            verb = f"continues after phase {done}" if done else "started"
            observer.note(f"{opened.place} {verb}", "Run")
            return _run_to_end(work)


def _open_run(
    header: TheoryHeader, held_out: Dataset, *, folder: Path | None, phases: int, new: bool
) -> TheoryRun:
    """Continue the named run or the newest unfinished run of equal choices, or start one."""
    config = header.config
    if folder is None and not new:
        alike = TheoryRun.find_equal(config)
        folder = next((run.folder for run in alike if not run.is_over(phases)), None)
    folder = folder or fresh_folder(config.env, config.method, str(config.seed))
    return TheoryRun.begin(folder, header, {DATASET: held_out})


class CollectedPhase(NamedTuple):
    """Rows collected in a phase.

    Attributes:
        number: Number of the phase.
        rows: Rows of the run so far.
        found: Rows of this phase by kind of change.
        first: For each kind that is new in this phase, the row of the run where it appeared,
            counted from 1.
    """

    number: int
    rows: int
    found: dict[str, int]
    first: dict[str, int]


@dataclass
class Theorizing:
    """A run of `cwm theorize`: collects, scores and proposes rules, phase by phase.

    Every event is written to the journal. A phase depends only on the seed, its number and the
    journal, so that a killed run continues to the same result. `number` is the current phase.
    """

    run: TheoryRun
    search: Search
    problem: TheoryProblem
    experimenter: Policy
    stage: Stage
    held_out: list[TextTransition]
    wanted_phases: int
    observer: Observer
    held_out_rows: Dataset
    measures_phases: bool = True
    """Score the held-out rows after every phase. If false, score them only after the last phase,
    because a language model needs tokens or time for each row."""
    phases: list[PhaseRecord] = field(default_factory=list, init=False)
    number: int = field(default=0, init=False)
    collecting: bool = field(default=False, init=False)
    collected: CollectedPhase = field(default=CollectedPhase(0, 0, {}, {}), init=False)
    discoveries: Discoveries = field(default_factory=Discoveries, init=False)
    _rows: list[Transition] = field(default_factory=list, init=False)
    _earlier: list[Transition] = field(default_factory=list, init=False)
    _episodes: int = field(default=0, init=False)
    _completions_before: int = field(default=0, init=False)
    _accepted_before: int = field(default=0, init=False)
    _recorded_usage: Usage = field(default_factory=Usage, init=False)
    _warned: bool = field(default=False, init=False)
    _charged: float = field(default=0.0, init=False)
    _held_out_scores: dict[str, dict[str, float]] = field(default_factory=dict, init=False)

    @property
    def title(self) -> str:
        """A title with the environment, the method and the backends."""
        config = self.run.config
        return f"{config.env} · {config.method} · {config.theorist}, {config.statistician}"

    @property
    def view(self) -> TextView:
        """The text view of the environment."""
        return self.problem.statistician.view

    @property
    def wanted(self) -> int:
        """Number of proposals per phase."""
        return self.run.config.proposals

    @property
    def doing(self) -> str:
        """The current phase and its state, for progress views."""
        if self.collecting:
            return f"{self.number + 1}: collecting"
        return f"{self.number}: proposal {self.proposed} of {self.wanted}"

    @property
    def proposed(self) -> int:
        """Number of proposals in this phase so far."""
        return self.search.completions - self._completions_before

    @property
    def accepted(self) -> int | None:
        """Number of accepted proposals in this phase; None if the method accepts none."""
        moved = getattr(self.search.strategy, "accepted", None)
        return None if moved is None else moved - self._accepted_before

    @property
    def kinds(self) -> dict[str, int]:
        """Number of held-out rows by kind of change, in the order of the view's kinds."""
        found = [each.change.kind for each in self.held_out]
        ordered = dict.fromkeys([*self.view.kinds, *found])
        return {kind: found.count(kind) for kind in ordered if kind in found}

    @property
    def usage(self) -> Usage:
        """Usage of all proposals and of all scoring."""
        own = [node.usage for node in self.search.nodes]
        return total([*own, *(each.weighed for each in self.phases), self._new_scoring_usage()])

    def resume(self) -> None:
        """Replay the journal; afterwards, new events are written to it."""
        self.search.journal = self._write
        for event in self.run.events():
            if isinstance(event, RowsAdded):
                self._begin_phase(event.number, list(self.run.read_rows(event)))
            elif isinstance(event, SearchRecord):
                self.search.resume([event.node])
            elif isinstance(event, PhaseRecord):
                self.phases.append(event)
        self.search.recall(total([each.weighed for each in self.phases]).cost or 0.0)
        experimenter = self.experimenter
        if self.phases and isinstance(experimenter, Experimenter) and experimenter.state():
            state = self.run.folder / STATE.format(self.phases[-1].number)
            try:
                experimenter.restore(read_arrays(state))
            except UnreadableError as error:
                hint = "restore it, or start another run"
                raise UnreadableError(state, error.reason, hint) from error
        self._save_best()

    def theorize(self) -> str:
        """Run the remaining phases; return why the run stopped: given_up, phases or money."""
        while True:
            over = self.number == (self.phases[-1].number if self.phases else 0)
            if over and self.search.given_up:
                return "given_up"
            if over and self.number >= self.wanted_phases:
                return "phases"
            if over:
                self._collect()
            self._propose()
            if self.search.out_of_money:
                return "money"
            self._end_phase()

    def _write(self, found: Record | Remark | Switch) -> None:
        assert isinstance(found, Record)
        self.run.append(SearchRecord(node=found.node, text=found.text))

    def _collect(self) -> None:
        """Collect the rows of a phase and store them."""
        if isinstance(self.experimenter, Experimenter):
            last, before = ["", "", *(each.rules for each in self.phases)][:-3:-1]
            self.experimenter.begin_phase(self._context(self.number + 1, last, before))
        self.collecting = True
        rows = collect_phase(
            self.stage,
            self.experimenter,
            self.run.config.episodes,
            seed=self.run.config.seed,
            first=self._episodes,
            earlier=self._earlier,
        )
        self.run.add_rows(dataset_of(self.stage, rows).with_columns_of(self.held_out_rows))
        self._begin_phase(self.number + 1, rows)
        self.observer.advanced(self.collected)

    def _begin_phase(self, number: int, rows: list[Transition]) -> None:
        """Start a phase with its collected rows."""
        self.number, self.collecting = number, False
        self._completions_before = self.search.completions
        self._accepted_before = getattr(self.search.strategy, "accepted", 0)
        before, known = dict(self.discoveries.counts), set(self.discoveries.first)
        self.discoveries.add(self.view.change(row).kind for row in rows)
        counts, first = self.discoveries.counts, self.discoveries.first
        self.collected = CollectedPhase(
            number,
            self.discoveries.steps,
            {
                kind: n - before.get(kind, 0)
                for kind, n in counts.items()
                if n > before.get(kind, 0)
            },
            {kind: row for kind, row in first.items() if kind not in known},
        )
        self._rows, self._episodes = rows, 1 + max(row.episode for row in rows)
        if not isinstance(self.experimenter, Experimenter):  # other policies may use earlier rows
            self._earlier += rows
        self.problem.observe(rows)
        self.search.outdate()

    def _propose(self) -> None:
        """Score the current rules again, then request new proposals."""
        for record in self.search.renew():
            self._record(record)
        try:
            for record in self.search.run(self._completions_before + self.wanted):
                self._record(record)
        except CwmError:
            for record in self.search.drain():  # proposals in flight are already paid for
                self._record(record)
            raise

    def _record(self, record: Record) -> None:
        """Store a new best rule set, count the cost, and notify the observer."""
        if self.search.best is record.node:
            self._save_best()
        cost = self._scoring_usage().cost
        if cost is not None and cost > self._charged:
            self.search.charge(cost - self._charged)
            self._charged = cost
        if record.note:
            self.observer.note(record.note)
        self.observer.advanced(record.node)

    def _save_best(self) -> None:
        if self.search.best is not None and self.search.best.program:
            self.problem.keep(self.run.folder, self.search.best)

    def _end_phase(self) -> None:
        """End a phase: score the best rules, train the experimenter, and write the record."""
        best, previous = self.search.best, self.phases[-1].rules if self.phases else ""
        rules = best.program if best else ""
        train = best.verdict.log_likelihood if best else None
        if train is None:  # no proposal could be scored
            rules, statistician = "", self.problem.statistician
            found = statistician.log_likelihoods("", self.problem.evidence, self.problem.discovered)
            train = float(found.sum())
        if isinstance(self.experimenter, Experimenter):
            self.experimenter.learn(self._context(self.number, rules, previous), self._rows)
            if state := self.experimenter.state():
                write_arrays(self.run.folder / STATE.format(self.number), state)
                # A crash before the record of this phase needs the state of the previous phase.
                (self.run.folder / STATE.format(self.number - 2)).unlink(missing_ok=True)
        is_last = self.number >= self.wanted_phases or self.search.given_up
        held_out = self._held_out(rules) if self.measures_phases or is_last else {}
        record = PhaseRecord(
            number=self.number,
            rules=rules,
            previous=previous,
            evidence=len(self.problem.evidence),
            train=train,
            held_out=held_out,
            proposals=self.proposed,
            scorings=self.problem.scorings,
            accepted=self.accepted,
            rows=self.collected.rows,
            found=self.collected.found,
            first=self.collected.first,
            weighed=self._new_scoring_usage(),
        )
        self.run.append(record)
        self.phases.append(record)
        self._recorded_usage = self._scoring_usage()
        self.observer.advanced(record)
        if self.problem.warning and not self._warned:
            self._warned = True
            self.observer.note(self.problem.warning, "Warning")

    def _held_out(self, rules: str) -> dict[str, float]:
        """Return the log-likelihood of the held-out rows by kind of change.

        All sentences count as discovered.
        """
        if rules not in self._held_out_scores:
            statistician = self.problem.statistician
            sentences = {each.text for row in self.held_out for each in row.candidates}
            found = statistician.log_likelihoods(rules, self.held_out, tuple(sorted(sentences)))
            kinds = np.array([each.change.kind for each in self.held_out])
            self._held_out_scores[rules] = {
                kind: float(found[kinds == kind].sum()) for kind in self.kinds
            }
        return self._held_out_scores[rules]

    def _context(self, number: int, rules: str, previous: str) -> PhaseContext:
        return PhaseContext(
            phase=number,
            progress=(number - 1) / self.wanted_phases,
            rules=rules,
            previous=previous,
            goal=self.view.goals[-1] if self.view.goals else "",
            view=self.view,
            statistician=self.problem.statistician,
            discovered=self.problem.discovered,
        )

    def _scoring_usage(self) -> Usage:
        """Return the usage of scoring in this process."""
        backends = {
            id(each): each for each in (self.search.backend, self.problem.statistician.backend)
        }
        return total([each.weighed for each in backends.values()])

    def _new_scoring_usage(self) -> Usage:
        """Return the usage of scoring since the last phase record."""
        now, known = self._scoring_usage(), self._recorded_usage
        cost = None if now.cost is None or known.cost is None else now.cost - known.cost
        return Usage(
            now.prompt_tokens - known.prompt_tokens,
            now.completion_tokens - known.completion_tokens,
            cost,
            now.seconds - known.seconds,
        )


def _run_to_end(work: Theorizing) -> TheorizingResult:
    """Run all phases and save the result; report how to continue an interrupted run."""
    run, observer = work.run, work.observer
    observer.begins(work)
    try:
        stopped = work.theorize()
    except KeyboardInterrupt:
        words = f"interrupted in phase {work.number}"
        raise KeyboardInterrupt(f"{words}: the same command continues {run.place}") from None
    except CwmError as error:
        run.log(f"stopped: {error}")
        if not work.search.nodes:
            raise
        raise CwmError(f"{error} (kept in {run.place}: the same command continues)") from error
    finally:
        observer.ends()
    result = _result(work, stopped)
    run.save_result(result.as_json())
    return result


def _result(work: Theorizing, stopped: str) -> TheorizingResult:
    run, phases, best = work.run, work.phases, work.search.best
    rules = phases[-1].rules if phases else ""
    if best is not None and best.verdict.log_likelihood is not None:
        rules = best.program
    moved = [each.accepted for each in phases if each.accepted is not None]
    ranked = Ranking.of(
        work.held_out, Theory(rules, work.problem.statistician).weights(work.held_out)
    )
    usage = work.usage
    return TheorizingResult(
        run=run.folder,
        rules=rules,
        file=run.folder / work.problem.file if rules else None,
        phases=phases,
        stopped=stopped,
        proposals=sum(each.proposals for each in phases),
        accepted=sum(moved) if moved else None,
        scorings=work.problem.scorings,
        completions=work.search.completions,
        tokens=usage.tokens,
        cost=usage.cost,
        seconds=round(run.elapsed, 3),
        held_out=work.kinds,
        topk=ranked.summary().model_dump(mode="json"),
    )
