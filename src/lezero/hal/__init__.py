"""The hardware abstraction layer."""
