"""`cwm cache`: the cache of completions."""

from __future__ import annotations

from typing import Annotated

from cwm_cli.cli.shared import JsonOption, basic_option, emit


def cache(
    clear: Annotated[bool, basic_option("--clear", help="Remove all completions.")] = False,
    gigabytes: Annotated[
        float | None,
        basic_option(
            "--gigabytes",
            min=0.0,
            help="Set the maximum size, at first 1 GB; the least recently used are removed.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        basic_option("--days", min=0.0, help="Set the maximum age, at first 90 days."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show or limit the cache of completions.

    Commands with --cache keep completions there. The cache stores completions in plain text,
    readable only by you, and only hashes of prompts.

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
        saved += f", and the unknown cost of {found.unpriced:,} completions"
    facts = {
        "file": found.file,
        "completions": f"{found.entries:,}",
        "size": f"{found.bytes / 1e6:,.1f} MB of {found.gigabytes:g} GB",
        "maximum age": f"{found.days:g} days",
        "reused": f"{found.reused:,} times",
        "saved": saved,
    }
    emit(facts, json=False)
