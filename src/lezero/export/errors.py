"""What an export raises."""


class ExportError(ValueError):
    """What cannot be exported; the message names the operation and the user's line."""
