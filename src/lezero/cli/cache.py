"""``lezero cache``."""

from __future__ import annotations

import json

import click

UNUSABLE = "NOT WRITABLE (or full), so every process compiles anew: set LEZERO_CACHE_DIR"


@click.command()
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cache(action: str, as_json: bool) -> None:
    """Show or clear the compiled kernels kept on disk.

    The folder is LEZERO_CACHE_DIR, its limit LEZERO_CACHE_LIMIT (bytes).
    """
    from lezero.backends.cpu.kernel_cache import DiskCache, cache_folder, cache_limit, writable

    try:
        kernels = DiskCache(cache_folder(), cache_limit())
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if action == "clear":
        before, _ = kernels.size()
        kernels.clear()
        left, _ = kernels.size()
        if left:
            raise click.ClickException(
                f"{left} of {before} kernels in {kernels.folder} could not be deleted; is it yours?"
            )
        click.echo(json.dumps({"deleted": before}) if as_json else f"{before} kernels deleted from {kernels.folder}")
        return
    entries, nbytes = kernels.size()
    usable = writable(kernels.folder)
    if as_json:
        facts = {
            "folder": str(kernels.folder),
            "writable": usable,
            "entries": entries,
            "bytes": nbytes,
            "limit": kernels.limit,
        }
        click.echo(json.dumps(facts))
    else:
        click.echo(
            f"{entries} kernels, {nbytes / 2**20:.1f} MiB of at most {kernels.limit / 2**20:,.0f} MiB, in {kernels.folder}"
            + ("" if usable else f"; {UNUSABLE}")
        )
