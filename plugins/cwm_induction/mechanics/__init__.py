"""Jointed mechanisms, fitted through the integrator; `fitting` is where to begin."""
