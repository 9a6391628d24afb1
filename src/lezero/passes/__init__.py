"""Restructuring passes; ``pipeline.py`` lists them in order."""
