"""The fork tool: applies `python/edits` and `python/sglang` to pinned SGLang."""
