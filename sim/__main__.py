"""``python -m sim`` does what the command ``shardwise`` does."""

from sim.cli import main

main()
