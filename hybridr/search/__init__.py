"""Search: from a query to ranked hits.

`fusions/` merge the candidates of the retrievers, `signals/` add what else is known of a document,
`rerankers/` look at the best hits once more, and `rules/` hold what people decided about single searches.
"""
