"""The cluster: what speaks to OpenSearch and Elasticsearch.

Connection and dialects, reading and writing of documents, mappings, the record that an index carries, and the
queries by which each retriever asks. It knows no encoder; `embedded/` starts a node on this machine.
"""
