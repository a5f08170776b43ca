"""What mkdocs asks of this project while it builds: pages without the attributes of their blocks.

Where a page says `<!-- generated: NAME -->`, what `reference` makes of the code stands there.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.documentation.pages import without_attributes


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page as it is drawn."""
    from benchmarks.documentation import reference

    def made(match: re.Match[str]) -> str:
        return reference.GENERATED[match[1]](*filter(None, match.groups()[1:]))

    markdown = re.sub(r"<!-- generated: ([a-z-]+)(?: (.+?))? -->", made, markdown)
    return without_attributes(markdown)
