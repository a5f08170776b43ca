"""The run of a search: the nodes of the tree with their completions, and the best program.

Completions of a language model are written and synced before any computation uses them, so that
none is paid twice: a process that continues the run reads the completions of earlier processes.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import (
    UnreadableError,
    open_for_appending,
    open_for_reading,
    parse_json,
    read_lines,
)
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import Score, baseline
from cwm_cli.evaluation.finding import ContractName, Finding
from cwm_cli.evaluation.verdicts import verdict
from cwm_cli.runs.files import RowsAdded, parse_model, read_journal
from cwm_cli.runs.nodes import NodeDetails, PromptFile, SearchRecord, node_details, tree_data
from cwm_cli.runs.programs import ProgramRun
from cwm_cli.runs.progress import score_curves, score_grid, score_parts, spending_sections
from cwm_cli.runs.report import RunReport, RunSummary, Section, table_of, with_effort
from cwm_cli.runs.store import DATASET, RESULT, RunHeader
from cwm_cli.search.contracts import (
    ROOT,
    Backend,
    Completion,
    Node,
    Record,
    Remark,
    Request,
    Switch,
    Turn,
    Usage,
    total,
)
from cwm_cli.search.models import BackendWrapper, ModelUse, model_uses
from cwm_cli.text import share

JOURNAL = "nodes.jsonl"

TREE_WORDS = (
    "A box is a program: its number, its move and its score, which is also the filled share of "
    "the box. A click or Enter shows the prompt, completion, program, difference and verdict. "
    "Arrow keys select, Space folds, + and - zoom."
)

PARTS = {"train": "train", "test": "held-out", "unseen": "of it not in train"}
"""Parts of the dataset with a score, and their titles."""


class SearchConfig(BaseModel, frozen=True, extra="forbid"):
    """The choices that identify a search.

    `dataset`, `body` and `description` are the digests of the transitions, of a given MuJoCo model
    and of a given description. `tools` are
    the modules that programs may import in addition to the standard ones, and `options` holds all
    options of strategy, backend, problem and sandbox. Budget, parallelism, cost limit and the
    address of the model are not included.
    """

    env: str
    env_args: dict[str, Any] = {}
    dataset: str
    strategy: str
    backend: str
    model: str = ""
    options: dict[str, dict[str, Any]] = {}
    tools: tuple[str, ...] = ()
    body: str = ""
    description: str = ""
    metric: str = "accuracy"
    contract: ContractName = "plain"
    seed: int = 0

    @property
    def method(self) -> str:
        """The strategy if a language model is used, else the backend that uses data alone."""
        return self.strategy if self.model else self.backend

    @property
    def title(self) -> str:
        """Environment, method and model, such as "CartPole-v1 · gif-mcts · openai/gpt-5"."""
        return " · ".join(filter(None, (self.env, self.method, self.model)))


class SearchHeader(RunHeader[SearchConfig]):
    """The header of a search: the description of the environment, and the diagnosis of the data.

    `finding` is the result of the checks for randomness and hidden state, None in old runs.
    `body` is the origin of a given MuJoCo model, "" if none was given.
    """

    kind: str = "search"
    description: str
    source: str
    body: str = ""
    finding: Finding | None = None


SearchLine = SearchRecord | Remark | Switch
"""A line of the journal."""


def connected_nodes(events: Iterable[Any]) -> Iterator[Any]:
    """Yield the lines of a journal with None for nodes and remarks whose parent node is missing.

    The other nodes are renumbered without gaps; lines of other kinds are unchanged.
    """
    known = {ROOT: ROOT}
    for event in events:
        if isinstance(event, Remark):
            place = known.get(event.node)
            yield None if place is None else event.model_copy(update={"node": place})
            continue
        if isinstance(event, Switch):
            verdicts = {known[node]: v for node, v in event.verdicts.items() if node in known}
            yield event.model_copy(update={"verdicts": verdicts})
            continue
        if not isinstance(event, SearchRecord):
            yield event
            continue
        node = event.node
        impossible = node.step < 0 and node.asked  # every completion has a step
        if node.id in known or node.parent not in known or impossible:
            yield None
            continue
        known[node.id] = place = len(known) - 1
        parent = known[node.parent]
        if (place, parent) != (node.id, node.parent):
            moved = replace(node, id=place, parent=parent)
            event = event.model_copy(update={"node": moved})
        yield event


class SearchRun(ProgramRun[SearchHeader, SearchLine]):
    """The folder of a search: `dataset.npz`, a line per node in `nodes.jsonl`, `best.py`."""

    kind = "search"
    header_type = SearchHeader
    record_type = SearchLine
    journal_name = JOURNAL

    @property
    def config(self) -> SearchConfig:
        """The choices of the search."""
        return self.header.config

    def nodes(self) -> Iterator[Node]:
        """Read the nodes of the tree in the order of their ids, with their last verdicts."""
        return (line.node for line in self.answers())

    def answers(self) -> list[SearchRecord]:
        """Read the nodes with their completions and their last verdicts."""
        lines: list[SearchRecord] = []
        for line in self.records():
            if isinstance(line, SearchRecord):
                lines.append(line)
            elif isinstance(line, Switch):
                lines = [each.model_copy(update={"node": line.judged(each.node)}) for each in lines]
        return lines

    def node_details(self) -> list[NodeDetails]:
        """Return the nodes in the order of their ids, with their prompts and completions."""
        return node_details(self.answers(), self.prompts.read())

    def node_detail(self, number: int) -> NodeDetails:
        """Return one node with its prompt and completion.

        Raises:
            CwmError: The search has no node of that number.
        """
        found = self.node_details()
        for one in found:
            if one.node.id == number:
                return one
        known = f"choose 0 to {len(found) - 1}" if found else "it has none yet"
        raise CwmError(f"{self.place} has no node {number}: {known}")

    def learned(self) -> Iterator[Node | Remark | Switch]:
        """Read the events of the search in their order: nodes, remarks and switches."""
        return (line.node if isinstance(line, SearchRecord) else line for line in self.records())

    def body_notes(self) -> list[str]:
        """Return a line about the MuJoCo model that was given to the search, if any."""
        return [f"body: {self.header.body}"] if self.header.body else []

    def contract_changes(self) -> list[str]:
        """Return each later contract of the search, with the reason for the change."""
        switches = (event for event in self.learned() if isinstance(event, Switch))
        return [f"{event.contract}: {event.reason}" for event in switches]

    def connected(
        self, events: Iterable[SearchLine | RowsAdded | None]
    ) -> Iterator[SearchLine | RowsAdded | None]:
        """Replace lines that depend on a missing node by None, and renumber the other nodes."""
        return connected_nodes(events)

    @cached_property
    def prompts(self) -> PromptFile:
        """The prompts of the search."""
        return PromptFile(self.folder)

    def learn(self, found: Record | Remark | Switch) -> None:
        """Append a node and its prompt, a remark or a switch to the journal."""
        if isinstance(found, Record) and found.messages:
            try:
                self.prompts.keep(found.node.prompt, found.messages)
            except (OSError, UnreadableError) as error:  # a search needs no saved prompts
                with suppress(OSError):
                    self.log(f"the prompt of node {found.node.id} was not saved: {error}")
        if isinstance(found, Record):
            self.append(SearchRecord(node=found.node, text=found.text))
        else:
            self.append(found)

    def scores(self) -> dict[str, Score]:
        """Read the known scores of the best program, by part of the dataset.

        Raises:
            UnreadableError: The scores in `result.json` are invalid.
        """
        found = self.result() or {}
        try:
            return {part: Score.model_validate(found[part]) for part in PARTS if found.get(part)}
        except ValidationError as error:
            hint = "remove it, or continue the run, which writes it again"
            raise UnreadableError(self.folder / RESULT, "its scores are invalid", hint) from error

    def model_scores(self) -> Mapping[str, Any]:
        """Return accuracy, exact rows and transitions of the best program, by part of the data."""
        names = {"test": "held-out"}
        return {
            names.get(part, part): score.model_dump(include={"accuracy", "exact", "transitions"})
            for part, score in self.scores().items()
        }

    def summary(self) -> RunSummary:
        """Return the environment, the method and the score of the best program."""
        config, nodes = self.config, list(self.nodes())
        asked, reused = sum(node.asked for node in nodes), total([n.usage for n in nodes]).reused
        best = max((node.verdict.score for node in nodes), default=None)
        stopped = ", no improvement" if (self.result() or {}).get("settled") else ""
        return RunSummary(
            self.place,
            self.kind,
            environment=config.env,
            strategy=config.strategy,
            answers=config.model or config.backend,
            seed=config.seed,
            completions=asked,
            done=f"{asked} completion{'' if asked == 1 else 's'}"
            + (f", {reused} of them reused" if reused else ""),
            result="" if best is None else f"best {share(best)}{stopped}",
            best=best,
            created=self.header.created,
            reused=reused,
        )

    def models(self) -> list[ModelUse]:
        """Return usage and gains by model; a single model gets the totals of the search."""
        return model_uses(self.nodes(), self.config.model or self.config.backend)

    @classmethod
    def report(cls, runs: Sequence[SearchRun]) -> RunReport:
        """Return the scores of a search."""
        base, about = super().report(runs), runs[0].summary()
        known = runs[0].scores()
        scores = {title: known[part] for part, title in PARTS.items() if part in known}
        return RunReport(
            title=f"{runs[0].config.title}, {about.run}",
            grids=[score_grid(scores)] if scores else [],
            verdict=runs[0].verdict(),
            notes=[
                f"seed {about.seed}, {', '.join(filter(None, (about.done, about.result)))}",
                *runs[0].body_notes(),
                *(f"contract changed to {change}" for change in runs[0].contract_changes()),
                *runs[0].gaps(),
            ],
            facts=base.facts,
        )

    @classmethod
    def sections(cls, runs: Sequence[SearchRun]) -> list[Section]:
        """Return the sections of the page: scores, curve, search tree, spending and program."""
        run = runs[0]
        tree = Section("tree", "Search tree", tree_data(run.node_details()), TREE_WORDS)
        notes = [Section("notes", "Body", {"lines": lines})] if (lines := run.body_notes()) else []
        return [
            *run.score_sections(),
            *notes,
            *score_curves(nodes := list(run.nodes())),
            tree,
            *spending_sections(nodes),
            *run.program_sections(),
        ]

    def verdict(self) -> str:
        """Return the outcome in a sentence, with completions, tokens, cost and seconds."""
        found, scores = self.result() or {}, self.scores()
        nodes = list(self.nodes())
        spent = total([node.usage for node in nodes])
        best = max((node.verdict.score for node in nodes), default=None)
        if scores:
            chosen = {name: found.get(name) for name in ("solved", "finished", "settled")}
            flags = {name: bool(value) for name, value in chosen.items()}
            events = found.get("untested" if flags["solved"] else "unverified") or ()
            words = verdict(scores.get("train"), scores.get("test"), **flags, unverified=events)
        else:
            words = "No program yet" if best is None else f"Not finished, best score {share(best)}"
        return with_effort(
            words,
            completions=sum(node.asked for node in nodes),
            tokens=spent.tokens,
            cost=spent.cost,
            seconds=found.get("seconds"),
        )

    def score_sections(self) -> Iterator[Section]:
        """Yield the parts of the scores of the best program, and all its figures."""
        if known := self.scores():
            scores = {title: known[part] for part, title in PARTS.items() if part in known}
            yield Section("bars", "Parts of the score", score_parts(scores, self.floors()))
            folded = "All figures of the score"
            yield Section("table", "", table_of(score_grid(scores), folded=folded))

    def floors(self) -> dict[str, Score]:
        """Return the baseline scores on the rows of the run, by title of the part."""
        try:
            rows = Dataset.load(self.folder / DATASET)
        except CwmError:
            return {}
        parts = {"train": rows.train, "held-out": rows.test}
        scores = {title: baseline(part, rows.train) for title, part in parts.items()}
        return {title: score for title, score in scores.items() if score is not None}


@dataclass
class JournalTail:
    """A summary of the journal of a running search; `read` reads only new lines.

    `cost` is None once the cost of one completion is unknown; `known_cost` is the sum of the known
    costs.
    """

    run: Path
    completions: int = 0
    best: float | None = None
    cost: float | None = 0.0
    known_cost: float = 0.0
    reused: int = 0
    _offset: int = 0

    def read(self) -> None:
        """Read the new complete lines; skip damaged ones, which the run itself reports."""
        try:
            with open_for_reading(self.run / JOURNAL) as journal:
                journal.seek(self._offset)
                added = journal.read()
        except UnreadableError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                record = parse_json(line)
                if record.get("kind") == "switch":
                    scores = [float(verdict["score"]) for verdict in record["verdicts"].values()]
                    self.best = max(scores, default=None)
                    continue
                node = record["node"]
                score, cost = float(node["verdict"]["score"]), node["usage"].get("cost")
                reused = int(node["usage"].get("reused", 0))
            except (ValueError, KeyError, TypeError):
                continue
            self.completions += bool(node.get("asked", True))
            self.reused += reused
            self.best = score if self.best is None else max(self.best, score)
            self.cost = None if cost is None or self.cost is None else self.cost + cost
            self.known_cost += cost or 0.0


def read_answers(folder: Path) -> Iterator[SearchLine]:
    """Read the nodes with completions, the remarks and switches of a folder; it may have none."""
    for line in read_journal(folder / JOURNAL, SearchLine).events:
        if not isinstance(line, RowsAdded):
            yield line


ANSWERS = "answers.jsonl"
"""File of a run folder with all completions in the order of arrival."""


class RecordedAnswer(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """A line of the file: a completion, and the hash of its request."""

    request: str
    step: int
    known: int
    text: str
    usage: Usage
    final: bool = False
    lacking: str = ""
    log_probability: float | None = None

    @property
    def completion(self) -> Completion:
        """The completion as the backend returned it."""
        return Completion(
            self.text, self.usage, self.final, self.lacking, log_probability=self.log_probability
        )


class RecordedAnswers(BackendWrapper):
    """A backend that records its completions in a file, and returns recorded ones first."""

    def __init__(self, inner: Backend, file: Path) -> None:
        super().__init__(inner)
        self._file, self._lock = file, threading.Lock()
        self._known: defaultdict[str, list[RecordedAnswer]] = defaultdict(list)
        try:
            lines = list(read_lines(file))
        except UnreadableError as error:
            if not error.is_missing:
                raise
            lines = []
        for line in lines:
            try:
                answer = parse_model(RecordedAnswer, line)
            except ValueError:
                continue  # a crash left an incomplete line
            self._known[answer.request].append(answer)

    def complete(self, request: Request) -> Completion:
        """Return the recorded completion, else request one and record it."""
        key = request_key(request)
        with self._lock:
            if known := self._known[key]:
                return known.pop(0).completion
        completion = self.inner.complete(request)
        answer = RecordedAnswer(
            request=key,
            step=request.step,
            known=request.known,
            text=completion.text.encode("utf-8", "replace").decode(),
            usage=completion.usage,
            final=completion.final,
            lacking=completion.lacking,
            log_probability=completion.log_probability,
        )
        with self._lock, open_for_appending(self._file) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")  # a crash left an incomplete line
            file.write(answer.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return completion


class PendingAnswers(RecordedAnswers):
    """A backend that records each completion until the journal contains its node.

    A search that continues a run judges the completions that arrived before the interruption.
    """

    def __init__(self, inner: Backend, file: Path) -> None:
        super().__init__(inner, file)
        self._waiting = {turn.step for turn in self.lost()}

    def lost(self) -> list[Turn]:
        """Return step and number of known nodes of the completions without a node, sorted."""
        return sorted(
            Turn(answer.step, answer.known)
            for answers in self._known.values()
            for answer in answers
        )

    def worst_cost(self, request: Request) -> float | None:
        """Return the cost of the recorded completion, else the highest possible cost."""
        known = self._known[request_key(request)]
        return known[0].usage.cost if known else self.inner.worst_cost(request)

    def complete(self, request: Request) -> Completion:
        """Return the recorded completion, else request one and record it."""
        self._waiting.add(request.step)
        return super().complete(request)

    def update(self, node: Node) -> None:
        """Remove the completion of a node; delete the file if no completion is left."""
        self.inner.update(node)
        if node.step not in self._waiting:
            return
        with self._lock:
            self._waiting.discard(node.step)
            for answers in self._known.values():
                answers[:] = [answer for answer in answers if answer.step != node.step]
            if not self._waiting:
                self._file.unlink(missing_ok=True)


def request_key(request: Request) -> str:
    """Return a hash of the fields that make a request unique within a run."""
    words = [(message.role, message.content) for message in request.messages]
    parts = [words, request.seed, request.step, request.occurrence, request.model]
    return sha256(json.dumps(parts).encode()).hexdigest()
