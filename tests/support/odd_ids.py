"""Ids of documents that would write a line of their own into a file of lines, and odd ones that fit."""

from __future__ import annotations

FORGING = [
    "v2\t1\nquery\th5",
    "v2\n0 h5 1",
    "v2\rquery\th5\t1",
    "v2\r\n",
    "\tv2",
    "v2\u2028h5",
    "v2\u2029h5",
    "v2\x85h5",
    "v2\x0bh5",
    "v2\x0ch5",
    "v2\x1ch5",
    "v2\x1eh5",
    "v2\ud800",
    " ",
]
HARMLESS = ["v2", "v 2", "v2#1", 'v"2"', "v2,1", "ü", "v2\\t1", "=1+1", "\u4e2d"]
