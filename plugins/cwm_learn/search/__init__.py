"""Searches and policies that simulate a model inside the process of its program.

Each function takes a `Model` and named arrays, and returns named arrays, so that a whole search or
policy costs one call. Only numpy and the standard library can be imported here. Steps are counted
in `model.counter`: a process that counts no steps for long is assumed to hang, and is ended.
"""
