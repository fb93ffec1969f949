"""Serving: how others ask.

The HTTP API and the proxy; `rewriting/` ranks a client's own query, `deploy/` keeps pipelines in the cluster,
`page/` is the page in the browser, and `agents/` are tools for language models.
"""
