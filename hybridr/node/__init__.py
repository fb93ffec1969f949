"""The embedded OpenSearch node: fetched, verified, laid out, started and stopped."""
