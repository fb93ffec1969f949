"""Everything that talks to OpenSearch and Elasticsearch; `embedded/` starts a node on this machine.

Connection and dialects, reading and writing of documents, mappings, the record that hybridr keeps in an
index, and the queries of each retriever. This package knows no encoder.
"""
