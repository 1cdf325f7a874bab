"""``python -m outcore``: the command ``outcore``."""

from outcore.cli import main

main(prog_name="python -m outcore")
