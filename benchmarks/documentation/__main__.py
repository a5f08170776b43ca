"""Run pages of the documentation: write what their commands print, or list what ran."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.documentation.pages import Page, PageError, pages, runs
from benchmarks.documentation.running import Ran, Session, checked, recorded


def main() -> int:
    """Run what is asked for; returns how many pages were not as they say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documentation", description=__doc__)
    parser.add_argument("page", nargs="*", help="parts of paths, such as tutorials/learn; else all")
    parser.add_argument("--record", action="store_true", help="write outputs where they differ")
    parser.add_argument("--list", action="store_true", help="print page, line, command and seconds")
    parser.add_argument("--when", nargs="+", default=["quick", "slow"], help="quick, slow or long")
    asked = parser.parse_args()
    wrong = 0
    for page in pages():
        if asked.page and not any(part in page.name for part in asked.page):
            continue
        try:
            if asked.page or page.when in asked.when:
                wrong += not run(page, record=asked.record, listed=asked.list)
        except (PageError, AssertionError) as error:
            wrong += 1
            print(error, file=sys.stderr)
    return min(wrong, 1)


def run(page: Page, *, record: bool, listed: bool) -> bool:
    """Run a page and print what ran; returns whether it shows what is so."""
    with TemporaryDirectory(prefix="cwm-page-") as folder, Session(page, Path(folder)) as session:
        try:
            if record:
                problems = list(filter(None, [recorded(page, session)]))
            else:
                problems = list(checked(page, session))
        finally:
            total = sum(each.seconds for each in session.ran)
            print(f"{page.name}: {len(session.ran)} commands, {total:.1f} s ({page.when})")
            if listed:
                print_list(page, session.ran)
    print("\n".join(problems))
    return not problems


def print_list(page: Page, ran: list[Ran]) -> None:
    """Print what ran, and what did not and why."""
    for each in ran:
        print(f"  {each.page}:{each.line}  {each.seconds:6.1f} s  {each.what}")
    for step in page.steps():
        if not runs(step.block) and "no-run" in step.block.attributes:
            reason = step.block.attributes["no-run"]
            for command in step.block.commands:
                print(f"  {page.name}:{step.block.line}  not run ({reason})  {command}")


if __name__ == "__main__":
    sys.exit(main())
