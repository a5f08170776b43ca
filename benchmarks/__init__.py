"""Benchmarks: scripts that measure the claims of this project, each in one run."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads would slow down the other side
