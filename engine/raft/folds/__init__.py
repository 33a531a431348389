"""The rules by which events change the image, one file per area of the metadata.

A rule is a pure function (image, change, time of the event) -> image that raises a typed error when the change does
not apply to this state. Folding an event and checking a change before it is proposed are the same call, so they
cannot disagree. Rules are part of the format: a log folds into the same image in every later release.
"""
