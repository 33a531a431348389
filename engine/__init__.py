"""The storage engine: segments, index, metadata events and the embedded API. No HTTP, no Spark."""
