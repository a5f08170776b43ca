"""Foreign text made harmless for terminals, files and prompts."""

import unicodedata


def clean(text: str, *, limit: int | None = None, newlines: bool = False) -> str:
    """Replace control and format characters (escapes, bells, direction marks) and cut to `limit`.

    Line ends become spaces unless `newlines` is set.
    """
    kept = "\n\t" if newlines else ""
    if not newlines:
        text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c)[0] != "C" else "\ufffd" for c in text)
