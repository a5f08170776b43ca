"""Gather what came of a run, or of several that shared its problems."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cwm_apps.folder import Folder, Found, Header, changes
from cwm_apps.report import Report
from cwm_apps.scoring import Outcome, PassAt, pass_at
from cwm_apps.solutions import read_judged
from cwm_cli.errors import CwmError

FIELDS = set(Outcome.model_fields)
KS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass
class Gathered:
    """What is there of every problem that was asked for; what is said of it goes to `notes`."""

    header: Header
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    verdicts: dict[int, list[bool]] = field(default_factory=dict)
    problems: set[int] = field(default_factory=set)
    skipped: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> list[int]:
        """The problems of which nothing is known yet."""
        return sorted(self.problems - self.outcomes.keys() - self.skipped.keys())

    def report(self) -> Report:
        """Return what was found as tables."""
        config = self.header.config
        words = (config.dataset, config.strategy, config.model or config.backend)
        outcomes = [self.outcomes[number] for number in sorted(self.outcomes)]
        is_published = config.dataset == "hub" and bool(outcomes)
        return Report(
            title=" · ".join(filter(None, words)),
            outcomes=outcomes,
            passes=list(self._passes()),
            skipped=dict(sorted(self.skipped.items())),
            quotes=is_published and all(o.difficulty == "competition" for o in outcomes),
        )

    def _passes(self) -> Iterator[PassAt]:
        """Yield pass@k up to the smallest number of programs of a problem."""
        least = min(map(len, self.verdicts.values()), default=0)
        return pass_at(self.verdicts.values(), [k for k in KS if k <= least])


def gather(folders: Sequence[Folder]) -> Gathered:
    """Merge runs of equal choices: of a problem that several have, the first result counts."""
    headers = [folder.header() for folder in folders]
    for folder, header in zip(folders, headers, strict=True):
        _check_equal(folders[0], folder, headers[0], header)
    gathered = Gathered(headers[0])
    for header in headers:
        gathered.problems |= set(header.problems)
        gathered.skipped |= header.skipped
    if headers[0].config.strategy:
        _gather_searches(gathered, folders)
    else:
        _gather_solutions(gathered, folders)
    gathered.skipped = {n: w for n, w in gathered.skipped.items() if n not in gathered.outcomes}
    return gathered


def _check_equal(first: Folder, other: Folder, before: Header, now: Header) -> None:
    """Refuse to merge runs of other choices."""
    if names := changes(before.config, now.config):
        raise CwmError(f"{first.path} and {other.path} differ in {names}: report them one by one")


def _gather_searches(gathered: Gathered, folders: Sequence[Folder]) -> None:
    """Gather the results of searches."""
    known: dict[int, tuple[Folder, Found]] = {}
    for folder in folders:
        for found in folder.every_found():
            first, before = known.setdefault(found.id, (folder, found))
            if before.digest != found.digest:
                raise CwmError(
                    f"problem {found.id} is not the same in {first.path} and {folder.path}: "
                    "report them one by one"
                )
            if first is not folder:
                note = f"problem {found.id} is in {first.path} and {folder.path}: the first counts"
                gathered.notes.append(note)
    gathered.outcomes = {
        number: Outcome(**found.model_dump(include=FIELDS)) for number, (_, found) in known.items()
    }


def _gather_solutions(gathered: Gathered, folders: Sequence[Folder]) -> None:
    """Gather the results of programs from elsewhere; the first of a problem is its outcome."""
    lines: dict[tuple[int, int], Outcome] = {}
    for folder in folders:
        judged = read_judged(folder)
        if known := sorted({number for number, _ in judged.keys() & lines.keys()}):
            words = f"problem {known[0]}" + (f" and {len(known) - 1} more" if known[1:] else "")
            gathered.notes.append(f"{words} of {folder.path} was judged before: the first counts")
        lines = {key: line.outcome for key, line in judged.items()} | lines
    for (number, place), outcome in sorted(lines.items()):
        gathered.verdicts.setdefault(number, []).append(outcome.strict)
        if place == 0:
            gathered.outcomes[number] = outcome
