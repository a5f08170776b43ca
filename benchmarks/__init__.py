"""One small script per claim of speed or size; each prints a ratio measured in one run."""
