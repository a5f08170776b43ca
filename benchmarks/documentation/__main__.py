"""Run pages of the documentation; check or update the outputs of their commands."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.documentation.pages import Page, PageError, pages, runs
from benchmarks.documentation.running import Execution, Session, check, record_outputs


def main() -> int:
    """Run the selected pages; return 1 if any page fails or shows a wrong output, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documentation", description=__doc__)
    parser.add_argument(
        "page", nargs="*", help="parts of paths, such as tutorials/learn; default: all"
    )
    parser.add_argument("--record", action="store_true", help="update outputs that differ")
    parser.add_argument("--list", action="store_true", help="print page, line, command and seconds")
    parser.add_argument("--when", nargs="+", default=["quick", "slow"], help="quick, slow or long")
    chosen = parser.parse_args()
    wrong = 0
    for page in pages():
        if chosen.page and not any(part in page.name for part in chosen.page):
            continue
        try:
            if chosen.page or page.when in chosen.when:
                wrong += not run(page, record=chosen.record, listed=chosen.list)
        except (PageError, AssertionError) as error:
            wrong += 1
            print(error, file=sys.stderr)
    return min(wrong, 1)


def run(page: Page, *, record: bool, listed: bool) -> bool:
    """Run a page and print a summary; return whether all its outputs are correct."""
    with TemporaryDirectory(prefix="cwm-page-") as folder, Session(page, Path(folder)) as session:
        try:
            if record:
                problems = list(filter(None, [record_outputs(page, session)]))
            else:
                problems = list(check(page, session))
        finally:
            total = sum(each.seconds for each in session.executions)
            print(f"{page.name}: {len(session.executions)} commands, {total:.1f} s ({page.when})")
            if listed:
                print_list(page, session.executions)
    print("\n".join(problems))
    return not problems


def print_list(page: Page, executions: list[Execution]) -> None:
    """Print the commands that ran, and the skipped commands with the reason."""
    for each in executions:
        print(f"  {each.page}:{each.line}  {each.seconds:6.1f} s  {each.command}")
    for step in page.steps():
        if not runs(step.block) and "no-run" in step.block.attributes:
            reason = step.block.attributes["no-run"]
            for command in step.block.commands:
                print(f"  {page.name}:{step.block.line}  not run ({reason})  {command}")


if __name__ == "__main__":
    sys.exit(main())
