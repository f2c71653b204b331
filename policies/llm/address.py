"""Checking the address of an endpoint before anything is sent there."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from exactlyonce_env.errors import UserError

__all__ = ["checked_address"]

HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.IGNORECASE)
"""A name of labels, or four numbers."""

USER = re.compile(r"[^/@]*@")

EXAMPLE = "write http://HOST:PORT/v1 or https://HOST/v1"


def checked_address(url: str, where: str) -> str:
    """The address as it was given.

    Parameters
    ----------
    url
        What should be an address.
    where
        Which option or variable it stands in.

    Raises
    ------
    UserError
        Where no request could be sent there, or the address itself holds a password, which would be
        written into manifests and shells' histories. The password is not repeated.
    """
    shown = repr(USER.sub("...@", url)[:200])

    def refused(why: str) -> UserError:
        return UserError(f"{where} {shown} is no address: {why}; {EXAMPLE}")

    if not (url.isascii() and url.isprintable()) or " " in url:
        raise refused("it holds a blank or a character that no address has")
    if not url.startswith(("http://", "https://")):
        raise refused("it does not begin with http:// or https://")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refused(str(error)) from None
    if "@" in parts.netloc:
        raise refused("the key belongs into OPENAI_API_KEY, not before an @")
    if "?" in url or "#" in url:
        raise refused("a path is added to it, so that it can hold no ? or #")
    if not _is_host(parts.hostname or ""):
        raise refused("it names no host")
    if port == 0:
        raise refused("port 0 is none")
    return url


def _is_host(name: str) -> bool:
    if HOST.fullmatch(name):
        return len(name) <= 253
    try:
        return ipaddress.ip_address(name).version == 6
    except ValueError:
        return False
