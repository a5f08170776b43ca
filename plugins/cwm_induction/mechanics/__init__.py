"""Jointed mechanisms, fitted through the integrator."""
