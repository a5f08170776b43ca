"""A counter of the files that this process opens."""

import sys

opened = {"counting": False, "files": 0}


def count(event: str, arguments: tuple[object, ...]) -> None:
    if opened["counting"] and event == "open":
        opened["files"] += 1


sys.addaudithook(count)
