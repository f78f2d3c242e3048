"""Tests the pull request from a fresh tree of the pin, without this repository on the path."""
