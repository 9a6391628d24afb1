"""``python -m lezero.cli``: the same as ``lezero``."""

from lezero.cli import main

main()
