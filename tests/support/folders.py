"""Folders of the repository that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
WORLD_MODELS = SUPPORT / "world_models"
CORRIDOR = SUPPORT / "corridor"
