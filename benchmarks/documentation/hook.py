"""What mkdocs asks of this project while it builds: pages without the attributes of their blocks.

Where a page says `<!-- generated: NAME -->`, what `reference` makes of the code stands there.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.documentation.pages import without_attributes


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not written yet."""
    docs = Path(config["docs_dir"])

    def there(entries: list[Any]) -> list[Any]:
        kept = []
        for entry in entries:
            [(title, target)] = entry.items()
            target = there(target) if isinstance(target, list) else target
            if target and (isinstance(target, list) or (docs / target).exists()):
                kept.append({title: target})
        return kept

    config["nav"] = there(config["nav"])
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page as it is drawn."""
    from benchmarks.documentation import reference

    def made(match: re.Match[str]) -> str:
        return reference.GENERATED[match[1]](*filter(None, match.groups()[1:]))

    markdown = re.sub(r"<!-- generated: ([a-z-]+)(?: (.+?))? -->", made, markdown)
    return without_attributes(markdown)
