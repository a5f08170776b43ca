"""Training by gradient descent: world models, and agents that act in them.

`trainer` has the base classes. A `Trainer` begins a `Training`, whose world model is fitted to
rows. An `AgentTrainer` begins an `Agent`, which learns in a world model or from rows. `train`
implements `cwm train`: it collects rows, fits both, tests the agent, and saves them in a folder
of `runs`.
"""
