"""Datasets from the replay buffers of the Code World Models paper (Dainese et al., 2024).

`pickles` reads a pickle as data, `buffer` its columns, `converting` makes transitions of an
environment of them, and `importer` is what `cwm data import` asks.
"""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Offer the format of the published replay buffers."""
    return {"published": "cwm_published.importer:PublishedBuffer"}
