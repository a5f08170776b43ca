"""Programs as one writes them from memory; those for MuJoCo have the mechanism as XML."""
