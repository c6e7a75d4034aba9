"""Predictions against published measurements."""
