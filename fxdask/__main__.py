"""``python -m fxdask`` is the command line."""

from fxdask.cli import main

main()
