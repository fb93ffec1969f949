"""Vectors inside the user's own index: no new index, no alias; every write is over the state that was read.

The fields of an existing index cannot be hidden from `_source`, so a client's partial update keeps the vector
and whatever says that it is current. Hence the mark beside each vector names encoder and text: see `marks`.
"""
