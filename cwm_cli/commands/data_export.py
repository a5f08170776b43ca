"""The former address of `Exporter`; use `cwm_cli.commands.data`."""

import warnings

from cwm_cli.commands.data import Exporter as Exporter

warnings.warn(
    "cwm_cli.commands.data_export is now cwm_cli.commands.data", DeprecationWarning, stacklevel=2
)
