"""Status: what hybridr made for an index, what it keeps beside it, and how all of it is removed."""
