"""How chance and memory are learned, scored and planned with: `python -m benchmarks.chance`."""
