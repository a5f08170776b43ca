"""APPS itself, downloaded once from the hub of Hugging Face."""

import hashlib
import re
from pathlib import Path

from cwm_cli.errors import CwmError

REPOSITORY, FILE, REVISION = "codeparrot/apps", "test.jsonl", "main"
OTHERWISE = "give a file or folder of APPS with --data PATH"
ATTEMPTS = 2


def hub() -> Path:
    """Return the test split in the cache of the hub; its folder is named after the commit.

    The library takes up a broken download, but of what it has it compares only the
    size: the checksum of the content, after which the hub names it, is checked here.
    """
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        hint = "pip install 'cwm-cli[hub]'"
        raise CwmError(f"the hub needs a package that is not installed: {hint}") from error
    cached = try_to_load_from_cache(REPOSITORY, FILE, revision=REVISION, repo_type="dataset")
    if isinstance(cached, str) and _intact(Path(cached)):
        return Path(cached)
    for _ in range(ATTEMPTS):
        if _intact(path := _download()):
            return path
    raise CwmError(f"{path} is damaged, however often it is downloaded: {OTHERWISE}")


def _download() -> Path:
    """Have the library put the file into the cache, whatever is there."""
    import httpx
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            REPOSITORY, FILE, repo_type="dataset", revision=REVISION, force_download=True
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise CwmError(f"cannot download {REPOSITORY} ({_reason(error)}): {OTHERWISE}") from error
    return Path(path)


def _reason(error: BaseException) -> str:
    """Return the first line of what an error, or the one behind it, says."""
    said = str(error.__cause__ or error).strip().splitlines()
    return said[0].rstrip(".:") if said else type(error).__name__


def _intact(path: Path) -> bool:
    """Return whether a file has the checksum that it is named after, where the cache names it."""
    name = path.readlink().name if path.is_symlink() else ""
    if not re.fullmatch("[0-9a-f]{64}", name):
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == name
