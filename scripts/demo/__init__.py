"""`make demo`: the dense and the packed draft path in the real server, side by side."""
