"""Run the code blocks of the documentation, record outputs, and generate reference pages.

`python -m benchmarks.documentation --record [PAGE ...]` runs pages and updates the outputs below
their commands. `--list` prints each command with its duration.
"""
