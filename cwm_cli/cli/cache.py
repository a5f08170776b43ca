"""`cwm cache`: the answers of language models that were kept."""

from __future__ import annotations

from typing import Annotated

import typer

from cwm_cli.cli.shared import JsonOption, emit


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all answers.")] = False,
    gigabytes: Annotated[
        float | None,
        typer.Option(
            "--gigabytes",
            min=0.0,
            help="How large it may become from now on: what was used longest ago is removed. "
            "Default: 1.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days",
            min=0.0,
            help="How old an answer may become from now on. Default: 90.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what `--cache` has kept: where, how many answers, and how much they saved.

    Answers lie there as they are, readable by this user alone; of prompts there are hashes only.

    Example: cwm cache --gigabytes 5
    """
    from cwm_cli.search.answers import AnswerCache
    from cwm_cli.text import money

    answers = AnswerCache()
    if clear:
        answers.clear()
    if gigabytes is not None or days is not None:
        answers.limit(gigabytes, days)
    found = answers.summary()
    if json:
        emit(found.as_json(), json=True)
        return
    saved = money(found.saved)
    if found.unpriced:
        saved += f", and what {found.unpriced:,} answers of unknown price cost"
    facts = {
        "file": found.file,
        "answers": f"{found.entries:,}",
        "size": f"{found.bytes / 1e6:,.1f} MB of {found.gigabytes:g} GB",
        "oldest": f"{found.days:g} days at most",
        "reused": f"{found.reused:,} times",
        "saved": saved,
    }
    emit(facts, json=False)
