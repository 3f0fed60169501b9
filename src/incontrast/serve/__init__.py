"""A workspace's current version over HTTP: batched across requests, swapped without a gap."""
