"""Topologies that ship with Shardwise: one family a file, each a function that returns a ``Fabric``."""
