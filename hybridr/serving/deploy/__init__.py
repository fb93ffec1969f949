"""Deploy: what a cluster keeps so that plain REST ranks with vectors."""
