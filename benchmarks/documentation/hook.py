"""Hook of mkdocs: remove the attributes of blocks, and insert generated text.

A comment `<!-- generated: NAME -->` is replaced by the text of that name from `reference`.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.documentation.pages import without_attributes


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the Markdown of a page for mkdocs."""
    from benchmarks.documentation import reference

    def made(match: re.Match[str]) -> str:
        return reference.GENERATED[match[1]](*filter(None, match.groups()[1:]))

    markdown = re.sub(r"<!-- generated: ([a-z-]+)(?: (.+?))? -->", made, markdown)
    return without_attributes(markdown)
