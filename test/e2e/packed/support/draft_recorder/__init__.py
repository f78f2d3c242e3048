"""Records what every draft step of a running SGLang server returned, on each rank.

With this package's parent folder on `PYTHONPATH` SGLang finds the plugin by its entry
point. It does nothing unless `VPDRAFT_RECORDER_DIR` names a folder; then every rank
appends one JSON line an event to a file there. It reads stock SGLang as well as the
fork, dense as well as packed.
"""

from draft_recorder.events import Event, Forward, read_events

__all__ = ["Event", "Forward", "read_events"]
