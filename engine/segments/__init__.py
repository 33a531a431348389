"""Batches, segment files and the partition log made of them. Knows nothing of indexes, metadata or networks."""
