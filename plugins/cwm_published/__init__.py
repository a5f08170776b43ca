"""Datasets from the replay buffers of the Code World Models paper (Dainese et al., 2024).

`buffer` reads the columns of a pickle, `converting` makes transitions of an
environment of them, and `importer` is what `cwm data import` asks.
"""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Offer the format of the published replay buffers."""
    return {"published": "cwm_published.importer:PublishedBuffer"}
