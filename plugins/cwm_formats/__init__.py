"""Transitions in the formats that others read and write.

`minari_datasets` imports and exports Minari's datasets.
"""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_importers() -> Mapping[str, str]:
    """Offer Minari's datasets."""
    return {"minari": "cwm_formats.minari_datasets:MinariImporter"}


@hookimpl
def cwm_exporters() -> Mapping[str, str]:
    """Offer Minari's datasets."""
    return {"minari": "cwm_formats.minari_datasets:MinariExporter"}
