"""Metadata as events: their types, the image they fold into, and the log that keeps them."""
