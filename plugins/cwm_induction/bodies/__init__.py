"""Programs that simulate a given body: the layout of observations, the reward, the end.

`mechanism` simulates recorded steps, `layout` finds the state in observations, `readings` explains
the other components, `payoff` fits reward and termination, and `program` writes the result.
"""
