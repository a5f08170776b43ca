"""Recorded tables of sixteen simulated systems, with and without sensor noise.

`systems` writes the CSV files and computes the error of ideal predictors. Running the package
measures `cwm data import` and `cwm synthesize` on them. Independent authors wrote the systems. The
six systems in `DEVELOPMENT` were used to develop induction, and later the six in `FINAL` as well.
The four in `NEW` were written afterwards and measured once.
"""
