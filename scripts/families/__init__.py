"""Compares drafting with and without the vocabulary gather, family by family."""
