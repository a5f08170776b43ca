"""The one store: a folder, a header, a journal, a lock."""
