"""Find rules in words by how likely they make what is collected: what `cwm theorize` does.

`theorize` finds out what is asked for, opens the run, and lets `Theorizing` go on phase by phase:
an experimenter collects, the rules that are kept are weighed again, a theorist proposes others
(WorldLLM, Levy et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
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
from cwm_theorize.choosing import weigher
from cwm_theorize.experimenters import (
    Discoveries,
    Experimenter,
    PhaseContext,
    gather,
)
from cwm_theorize.parts import (
    TheoryChoices,
    answers,
    dataset_of,
    given_rows,
    held_out_rows,
    in_words,
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
"""The file with what an experimenter had learned at the end of a phase."""


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
    """Find rules in words that make what is collected likely; a stopped run continues.

    In each of the `phases` the `experimenter` collects so many `episodes`, the rules that the
    `method` keeps are weighed again by the `evidence`, and the `theorist` proposes so many others
    (`proposals`), which the `statistician` weighs. Both are backends
    by name, or `PROVIDER/NAME` for a language model; `model` names both at once. What rules
    predict is measured by the held-out rows of a `dataset`, or by rows that are collected for
    that from starts that no phase has. `hastings`, `evidence`, `reward` and `particles` are short
    for options of the method, the problem and the experimenter. With a `cache` what a language
    model was asked before costs nothing. The observer is told the
    `Theorizing`, each `Gathered`, `Node` and `PhaseRecord`. Raises `CwmError` for what the user
    can mend.
    """
    if min(phases, proposals, episodes, max_steps) < 1:
        raise CwmError("phases, proposals, episodes and steps must be at least 1")
    chosen = TheoryChoices(
        method or default("method"),
        experimenter,
        answers("theorist", theorist, model),
        answers("statistician", statistician, model),
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
    parts = chosen.made(options, {name: v for name, v in flags.items() if v is not None})
    if cache:
        parts = parts.kept(AnswerCache())
        if not parts.theorist.is_language_model and not parts.statistician.is_language_model:
            observer.note(uncached(chosen.theorist.backend))
    for backend in (parts.theorist, parts.statistician):
        backend.ready(max_cost)
    spec = find_environment(env, observer)
    given = None if dataset is None else given_rows(spec, dataset, env_args)
    args = dict(env_args or {}) if given is None else recorded_args(given, env_args)
    stage, view = in_words(spec, args, seed=seed, max_steps=max_steps)
    with closing(stage.env):
        parts.statistician.prepare(spec, args, observer.note)
        parts.experimenter.prepare(stage)
        held_out = given or held_out_rows(spec, args, seed=data_seed, max_steps=max_steps)
        words = text_transitions(view, held_out)
        weighs = weigher(parts.statistician, lambda told: observer.note(told, "Warning"))
        statistics = Statistician(view, weighs)
        statistics.log_likelihoods("", words[:1], (words[0].change.text,))  # or it says why not
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
                begins_with=held_out,
                measures_phases=not parts.statistician.needs_model,
            )
            work.resume()
            done = len(work.phases)
            verb = f"continues after phase {done}" if done else "started"
            observer.note(f"{opened.place} {verb}", "Run")
            return _theorized(work)


def _open_run(
    header: TheoryHeader, held_out: Dataset, *, folder: Path | None, phases: int, new: bool
) -> TheoryRun:
    """Continue the named run, or the newest unfinished one of equal choices, or start one."""
    config = header.config
    if folder is None and not new:
        alike = TheoryRun.find_equal(config)
        folder = next((run.folder for run in alike if not run.is_over(phases)), None)
    folder = folder or fresh_folder(config.env, config.method, str(config.seed))
    return TheoryRun.begin(folder, header, {DATASET: held_out})


class Gathered(NamedTuple):
    """What a phase collected: its number, the rows up to its end, how many of each kind of change.

    `first` has the row, counted from 1, at which a kind came up that had not before.
    """

    number: int
    rows: int
    found: dict[str, int]
    first: dict[str, int]


@dataclass
class Theorizing:
    """Collects, weighs and proposes, phase by phase, and writes all of it down.

    What a phase is made of follows from the seed, its number and what is written down, so that a
    run which is killed at any moment goes on to the same end. `number` is that of the phase.
    """

    run: TheoryRun
    search: Search
    problem: TheoryProblem
    experimenter: Policy
    stage: Stage
    held_out: list[TextTransition]
    wanted_phases: int
    observer: Observer
    begins_with: Dataset
    measures_phases: bool = True
    """Weigh the held-out rows after every phase. If not, only after the last one: a language model
    takes tokens or time for each row."""
    phases: list[PhaseRecord] = field(default_factory=list, init=False)
    number: int = field(default=0, init=False)
    collecting: bool = field(default=False, init=False)
    gathered: Gathered = field(default=Gathered(0, 0, {}, {}), init=False)
    discoveries: Discoveries = field(default_factory=Discoveries, init=False)
    _rows: list[Transition] = field(default_factory=list, init=False)
    _earlier: list[Transition] = field(default_factory=list, init=False)
    _episodes: int = field(default=0, init=False)
    _before: int = field(default=0, init=False)
    _moved: int = field(default=0, init=False)
    _known: Usage = field(default_factory=Usage, init=False)
    _warned: bool = field(default=False, init=False)
    _paid: float = field(default=0.0, init=False)
    _measured: dict[str, dict[str, float]] = field(default_factory=dict, init=False)

    @property
    def title(self) -> str:
        """Name the work in a few words."""
        config = self.run.config
        return f"{config.env} · {config.method} · {config.theorist}, {config.statistician}"

    @property
    def view(self) -> TextView:
        """The words of the environment."""
        return self.problem.statistician.view

    @property
    def wanted(self) -> int:
        """How many proposals a phase has."""
        return self.run.config.proposals

    @property
    def doing(self) -> str:
        """Say which phase it is, and what is being done."""
        if self.collecting:
            return f"{self.number + 1}: collecting"
        return f"{self.number}: proposal {self.proposed} of {self.wanted}"

    @property
    def proposed(self) -> int:
        """How many there are so far in this one."""
        return self.search.completions - self._before

    @property
    def accepted(self) -> int | None:
        """How often the method moved in this phase, None where it does not."""
        moved = getattr(self.search.strategy, "accepted", None)
        return None if moved is None else moved - self._moved

    @property
    def kinds(self) -> dict[str, int]:
        """How many held-out rows there are of each kind of change, in the order of the kinds."""
        found = [each.change.kind for each in self.held_out]
        ordered = dict.fromkeys([*self.view.kinds, *found])
        return {kind: found.count(kind) for kind in ordered if kind in found}

    @property
    def usage(self) -> Usage:
        """What proposals took, and what it took to weigh them."""
        own = [node.usage for node in self.search.nodes]
        return total([*own, *(each.weighed for each in self.phases), self._weighing()])

    def resume(self) -> None:
        """Take in what an earlier process did, line by line; from then on all is written down."""
        self.search.journal = self._write
        for event in self.run.events():
            if isinstance(event, RowsAdded):
                self._observe(event.number, list(self.run.read_rows(event)))
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
        self._keep()

    def theorize(self) -> str:
        """Go on until all phases are over; return why it ended."""
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
            self._conclude()

    def _write(self, found: Record | Remark | Switch) -> None:
        """Write down what the search found."""
        assert isinstance(found, Record)
        self.run.append(SearchRecord(node=found.node, text=found.text))

    def _collect(self) -> None:
        """Let the experimenter act, and write down what came of it."""
        if isinstance(self.experimenter, Experimenter):
            last, before = ["", "", *(each.rules for each in self.phases)][:-3:-1]
            self.experimenter.inquire(self._context(self.number + 1, last, before))
        self.collecting = True
        rows = gather(
            self.stage,
            self.experimenter,
            self.run.config.episodes,
            seed=self.run.config.seed,
            first=self._episodes,
            earlier=self._earlier,
        )
        self.run.add_rows(dataset_of(self.stage, rows).with_columns_of(self.begins_with))
        self._observe(self.number + 1, rows)
        self.observer.advanced(self.gathered)

    def _observe(self, number: int, rows: list[Transition]) -> None:
        """Begin a phase with what it collected."""
        self.number, self._before, self.collecting = number, self.search.completions, False
        self._moved = getattr(self.search.strategy, "accepted", 0)
        before, known = dict(self.discoveries.counts), set(self.discoveries.first)
        self.discoveries.add(self.view.change(row).kind for row in rows)
        counts, first = self.discoveries.counts, self.discoveries.first
        self.gathered = Gathered(
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
        if not isinstance(self.experimenter, Experimenter):  # others look back on rows of before
            self._earlier += rows
        self.problem.observe(rows)
        self.search.outdate()

    def _propose(self) -> None:
        """Weigh again what is kept, and have others proposed."""
        for record in self.search.renew():
            self._learned(record)
        try:
            for record in self.search.run(self._before + self.wanted):
                self._learned(record)
        except CwmError:
            for record in self.search.drain():  # what is in flight is paid for
                self._learned(record)
            raise

    def _learned(self, record: Record) -> None:
        """Keep what was learned if it is the best, and tell of it."""
        if self.search.best is record.node:
            self._keep()
        self._pay()
        if record.note:
            self.observer.note(record.note)
        self.observer.advanced(record.node)

    def _keep(self) -> None:
        """Write the best rules down."""
        if self.search.best is not None and self.search.best.program:
            self.problem.keep(self.run.folder, self.search.best)

    def _conclude(self) -> None:
        """Measure the best rules of the phase, let the experimenter learn, and write it down."""
        best, previous = self.search.best, self.phases[-1].rules if self.phases else ""
        rules = best.program if best else ""
        train = best.verdict.log_likelihood if best else None
        if train is None:  # nothing that could be weighed was proposed
            rules, statistician = "", self.problem.statistician
            found = statistician.log_likelihoods("", self.problem.evidence, self.problem.discovered)
            train = float(found.sum())
        if isinstance(self.experimenter, Experimenter):
            self.experimenter.learn(self._context(self.number, rules, previous), self._rows)
            if state := self.experimenter.state():
                self._save(state)
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
            rows=self.gathered.rows,
            found=self.gathered.found,
            first=self.gathered.first,
            weighed=self._weighing(),
        )
        self.run.append(record)
        self.phases.append(record)
        self._known = self._weighed()
        self.observer.advanced(record)
        if self.problem.warning and not self._warned:
            self._warned = True
            self.observer.note(self.problem.warning, "Warning")

    def _held_out(self, rules: str) -> dict[str, float]:
        """Return the log-likelihood of the held-out rows of each kind of change.

        All sentences count as discovered.
        """
        if rules not in self._measured:
            statistician = self.problem.statistician
            found = statistician.log_likelihoods(rules, self.held_out, self._sentences)
            kinds = np.array([each.change.kind for each in self.held_out])
            self._measured[rules] = {kind: float(found[kinds == kind].sum()) for kind in self.kinds}
        return self._measured[rules]

    @cached_property
    def _sentences(self) -> tuple[str, ...]:
        """All that may follow a held-out row."""
        found = (each.text for row in self.held_out for each in row.candidates)
        return tuple(sorted(set(found)))

    def _context(self, number: int, rules: str, previous: str) -> PhaseContext:
        """Return what an experimenter is told in a phase."""
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

    def _save(self, state: dict[str, np.ndarray]) -> None:
        """Keep what an experimenter has learned, and of the phases before only the last."""
        write_arrays(self.run.folder / STATE.format(self.number), state)
        (self.run.folder / STATE.format(self.number - 2)).unlink(missing_ok=True)

    def _weighed(self) -> Usage:
        """Return what weighing took in this process."""
        backends = {
            id(each): each for each in (self.search.backend, self.problem.statistician.backend)
        }
        return total([each.weighed for each in backends.values()])

    def _weighing(self) -> Usage:
        """Return what it took since the last phase that was written down."""
        now, known = self._weighed(), self._known
        cost = None if now.cost is None or known.cost is None else now.cost - known.cost
        return Usage(
            now.prompt_tokens - known.prompt_tokens,
            now.completion_tokens - known.completion_tokens,
            cost,
            now.seconds - known.seconds,
        )

    def _pay(self) -> None:
        """Count what weighing cost since this was last asked."""
        cost = self._weighed().cost
        if cost is not None and cost > self._paid:
            self.search.charge(cost - self._paid)
            self._paid = cost


def _theorized(work: Theorizing) -> TheorizingResult:
    """Theorize, and write down what came of it, whatever ends it."""
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
    """Gather what came of theorizing."""
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
