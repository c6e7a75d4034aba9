"""The built-in strategies, one file each."""
