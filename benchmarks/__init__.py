"""One small script per claim of speed or size; each prints a ratio measured in one run."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads would disturb the other side
