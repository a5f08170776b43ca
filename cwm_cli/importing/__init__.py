"""Datasets from the replay buffers of the Code World Models paper (Dainese et al., 2024)."""

from cwm_cli.importing.buffer import Buffer, read_buffer
from cwm_cli.importing.converting import Imported, MisfitError, convert, fits
from cwm_cli.importing.corruption import corrupt_first_rows

__all__ = [
    "Buffer",
    "Imported",
    "MisfitError",
    "convert",
    "corrupt_first_rows",
    "fits",
    "read_buffer",
]
