"""An observer that records the notes of a command."""

from cwm_cli import Observer


class Notes(Observer):
    """Records the words of all notes."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def note(self, words: str, kind: str = "Note") -> None:
        """Record a note."""
        self.words.append(words)
