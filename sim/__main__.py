"""``python -m sim`` does what the command ``shardwise`` does."""

from sim.cli.app import main

main()
