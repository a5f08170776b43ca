"""Packages that are written: what a search found, to be used without `cwm`, and new plugins.

`package` makes a Python package of the program of a run: `world` gathers what its environment
needs beside the program, `card` describes it. `finding` asks other kinds of run for what they
export, `plugins` fills in the templates of new plugins, and `publishing` writes what was made.
"""

from cwm_cli.export.package import export_of
from cwm_cli.export.publishing import Export, publish

__all__ = ["Export", "export_of", "publish"]
