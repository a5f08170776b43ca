"""Models of jointed mechanisms, fitted through a numerical integrator (see `fitting`)."""
