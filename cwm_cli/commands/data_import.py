"""The former address of `Importer`; use `cwm_cli.commands.data`."""

import warnings

from cwm_cli.commands.data import Importer as Importer

warnings.warn(
    "cwm_cli.commands.data_import is now cwm_cli.commands.data", DeprecationWarning, stacklevel=2
)
