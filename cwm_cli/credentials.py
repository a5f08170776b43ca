"""Keep credentials out of everything that is written or shown."""

import os
import re

MASK = "***"

SUSPICIOUS = r"key|token|secret|passw|pwd|auth|credential|signature"
"""Parts of the names of parameters that hold credentials."""

LOGIN = re.compile(r"(?<=://)[^/?#\s\"']*@")
PARAMETER = re.compile(rf"([?&][\w.%-]*(?:{SUSPICIOUS})[\w.%-]*=)[^&#\s\"']*", re.IGNORECASE)
AUTHORISATION = re.compile(r"\b(Bearer +|Basic +(?=\S*[A-Z0-9=]))[^\s\"']+")
"""Authorisation headers; without digits and capitals, "Basic" is an English word."""

SECRET_VARIABLE = re.compile("KEY|TOKEN|SECRET|PASSWORD")
"""Parts of the names of environment variables that hold keys."""

MIN_SECRET = 8
"""Shorter values of environment variables are no keys and may be part of any text."""


def without_credentials(text: str) -> str:
    """Return a text without the credentials in its URLs and headers, and without known keys.

    A user name and a password in a URL are removed; parameters such as `api_key`, authorisation
    headers and the values of environment variables that hold keys are masked.
    """
    text = PARAMETER.sub(rf"\1{MASK}", LOGIN.sub("", text))
    text = AUTHORISATION.sub(rf"\1{MASK}", text)
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and SECRET_VARIABLE.search(name):
            text = text.replace(value, MASK)
    return text


def is_secret(name: str) -> bool:
    """Return whether a parameter of that name holds credentials."""
    return re.search(SUSPICIOUS, name, re.IGNORECASE) is not None
