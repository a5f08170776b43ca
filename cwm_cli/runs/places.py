"""The former address of `storage_of`; use `cwm_cli.runs.storage`."""

import warnings

from cwm_cli.runs.storage import storage_of as storage_of

warnings.warn("cwm_cli.runs.places is now cwm_cli.runs.storage", DeprecationWarning, stacklevel=2)
