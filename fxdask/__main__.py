"""``python -m fxdask`` is the command line."""

from fxdask.cli.main import main

main()
