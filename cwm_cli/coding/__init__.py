"""Coding problems, as in APPS: what is asked, tests, judging of programs, and scores.

A program reads standard input and writes standard output, or defines a function
that is called. Its expected answers never enter the process that it runs in.
"""
