"""Refiners: improve a program from recorded transitions, without a completion."""
