"""URLs of searches, parsed by strict rules and written again from the parsed parts.

What is checked and what is sent to the cluster are the same object. No character of a client's URL is passed
on directly, so that no second parser (h11, Starlette, urllib3, a proxy before the cluster) can see another
path or parameter in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote, unquote_to_bytes

from .requests import BAD_REQUEST, Refused

Api = Literal["_search", "_msearch"]

SENT_PATH = re.compile(rb"(?:/([A-Za-z0-9._~!$&'()*+,;=:@%-]+))?/(_m?search)")
"""A path as it is sent: one segment for the index or none, then the API. No `?`, `#`, `//` or `\\`."""
SENT_QUERY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:@%/?\[\]{}|\"<>^`\\-]*")
"""Parameters as they are sent. A `#` would end them for some readers and not for others."""
BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
CONTROL = "\x00-\x1f\x7f-\x9f"
INDEX = re.compile(
    rf"""(?!\.\.?$)(?!_(?!all$))
    (?: [^\s{CONTROL}/\\?\#"<>|%,]+
      | -?<(?: [^\s{CONTROL}/\\?\#"<>%,] | /[yMwdhHms](?![\w.]) )+>   # date math, whose `/d` rounds
    )""",
    re.VERBOSE,
)
"""One name or pattern of indices. `_all` alone begins with `_`: all others are APIs of the cluster."""
PARAMETER = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
IN_PATH = frozenset(("index", "type", "id"))
"""What is part of the path: as a parameter it would name another index."""


@dataclass(frozen=True)
class SearchAddress:
    """The URL of a search: index names as the cluster reads them, API, decoded parameters.

    Raises ValueError for invalid names and parameters.
    """

    index: str
    api: Api
    params: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.index and not all(INDEX.fullmatch(name) for name in self.index.split(",")):
            raise ValueError("this is no name of an index")
        for name in self.params:
            if not PARAMETER.fullmatch(name) or name in IN_PATH:
                raise ValueError(f"'{name[:100]}' is no parameter of a search")

    @property
    def target(self) -> str:
        """Return path and query string of the HTTP request."""
        path = f"/{quote(self.index, safe='*,:')}/{self.api}" if self.index else f"/{self.api}"
        pairs = (f"{name}={quote(value, safe='*,:/')}" for name, value in self.params.items())
        return f"{path}?{'&'.join(pairs)}" if self.params else path

    def without(self, names: Collection[str]) -> SearchAddress:
        """Return the address without some of its parameters."""
        left = {name: value for name, value in self.params.items() if name not in names}
        return SearchAddress(self.index, self.api, left)


def read_address(raw_path: bytes, query: bytes) -> SearchAddress:
    """Return the parsed URL of a request. Raises Refused for one that is no search.

    Parameters are read as by the cluster: `&` and `;` separate them, `+` is a space, and the last of repeated
    values counts.
    """
    path = SENT_PATH.fullmatch(raw_path)
    if path is None or BAD_ESCAPE.search(raw_path):
        raise not_an_address()
    if not SENT_QUERY.fullmatch(query) or BAD_ESCAPE.search(query):
        raise Refused(BAD_REQUEST, "the parameters of the address cannot be read", "percent-encode them")
    try:
        index = unquote_to_bytes(path[1] or b"").decode()
    except UnicodeDecodeError:
        raise not_an_address() from None
    pairs = [part.partition(b"=") for part in re.split(b"[&;]", query) if part]
    params = {decoded(name): decoded(value) for name, _, value in pairs if name}
    try:
        return SearchAddress(index, cast("Api", path[2].decode()), params)
    except ValueError as error:
        raise Refused(404, str(error), "/INDEX/_search or /INDEX/_msearch") from None


def decoded(part: bytes) -> str:
    """Return a decoded name or value of a parameter; invalid UTF-8 is replaced, as by the cluster."""
    return unquote_to_bytes(part.replace(b"+", b" ")).decode(errors="replace")


def not_an_address() -> Refused:
    """Return the Refused error for a path that is no search."""
    return Refused(404, "this is no address of a search", "/INDEX/_search or /INDEX/_msearch")
