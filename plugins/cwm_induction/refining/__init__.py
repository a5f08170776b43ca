"""Refiners, which change a given program: `calibrate`, `join` and `patch`."""
