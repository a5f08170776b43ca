"""Programs with memory: counters, lags, clocks and hidden velocities."""
