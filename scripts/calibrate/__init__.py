"""Predicted against observed acceptance of drafted tokens, and the temperatures."""
