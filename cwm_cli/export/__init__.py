"""Packages that `cwm` writes: exported programs that run without `cwm`, and new plugins.

`package` builds a Python package of the best program of a search. Other kinds of run define their
own export. `plugins` fills in the templates of new plugins, and `publishing` writes the files.
"""

from cwm_cli.export.package import export_of
from cwm_cli.export.publishing import Export, publish

__all__ = ["Export", "export_of", "publish"]
