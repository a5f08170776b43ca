"""Recorded tables of twelve simulated systems, with and without sensor noise.

`systems` writes the CSV files and computes the error of ideal predictors. Running the package
measures `cwm data import` and `cwm synthesize` on them. An independent author wrote the systems
before the work on tables began. The six systems in `FINAL` were measured only at its end.
"""
