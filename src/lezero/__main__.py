"""``python -m lezero``: the same as ``lezero``."""

from lezero.cli import main

main()
