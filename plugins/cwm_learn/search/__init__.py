"""Functions that imagine with a model, in the process of its program: one concept a module.

Each takes a `Model` and named arrays, and returns named arrays, so that a whole search or a
policy costs one question. Only numpy and the standard library can be imported here. Steps are
counted in `model.counter`: a process that counts none for long is taken to hang, and is ended.
"""
