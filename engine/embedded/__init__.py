"""The embedded API: one directory, one writing process, no server."""
