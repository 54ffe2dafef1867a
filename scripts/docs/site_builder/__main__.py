"""Build the site into a folder, and fail if it has dead links."""

import sys
from pathlib import Path

import click

from site_builder.links import dead_links
from site_builder.pages import ROOT
from site_builder.site import build


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "site")
def main(folder: Path) -> None:
    """Build the site into FOLDER (build/site by default)."""
    try:
        n_pages = build(folder)
    except FileExistsError as error:
        sys.exit(str(error))
    dead = dead_links(folder)
    for link in dead:
        print(link, file=sys.stderr)
    if dead:
        sys.exit(f"{len(dead)} dead links; mend them in the Markdown files")
    print(f"{n_pages} pages, no dead links: {folder / 'index.html'}")


main()
