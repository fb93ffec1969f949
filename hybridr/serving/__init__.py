"""Serving: how others search an index.

The HTTP API and the proxy; `rewriting/` ranks a client's own query, `deploy/` stores pipelines in the
cluster, `page/` is the page in the browser, and `agents/` are tools for language models.
"""
