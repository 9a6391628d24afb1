"""``lezero version``."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Show the version."""
    from lezero import __version__

    click.echo(json.dumps({"version": __version__}) if as_json else f"lezero {__version__}")
