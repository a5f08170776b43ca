"""Programs of equations for observations of real numbers. `inducing` is the entry point.

`samples`, `variables` and `terms` describe the data; `regression` and `inner_constants` find a
formula; `chains` explains variables by equations; `dynamics` tries the families of explanations in
order. The package `laws` explains variables whose formula depends on the state, and the package
`rewards` explains rewards and ends of episodes.
"""
