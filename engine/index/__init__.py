"""The position index in LMDB: derived from the segments, disposable, and never trusted more than they are."""
