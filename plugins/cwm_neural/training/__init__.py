"""Training by gradient descent: world models, and agents that act in them.

`trainer` is the seam: a `Trainer` begins a `Training`, whose world model is fitted to rows, an
`AgentTrainer` an `Agent`, which learns in a world model or from rows. `train` is what `cwm train`
does: it collects, has both fitted, tests the agent, and keeps all of it in a folder of `runs`.
"""
