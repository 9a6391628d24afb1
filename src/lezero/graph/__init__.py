"""Nodes, graphs, symbolic extents and element types."""
