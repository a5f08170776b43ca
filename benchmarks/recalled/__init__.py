"""Programs for MuJoCo environments as one writes them from memory, the mechanism as XML in each."""
