"""The coding benchmark APPS: programs for coding problems, judged by tests that nobody sees."""
