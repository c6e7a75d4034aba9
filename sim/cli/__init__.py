"""The command ``shardwise``."""
