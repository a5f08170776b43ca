"""Datasets from the replay buffers of the Code World Models paper (Dainese et al., 2024).

`buffer` reads the columns of a pickle, `converting` makes transitions of an environment from them,
and `importer` implements the format for `cwm data import`.
"""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Add the format of the published replay buffers."""
    return {"published": "cwm_published.importer:PublishedBuffer"}
