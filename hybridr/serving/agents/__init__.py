"""Agents: how language models search, by tools of the Model Context Protocol."""
