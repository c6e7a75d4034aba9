"""What can be named in a scenario: shipped models, GPUs, topologies, strategies and scenarios, and plug-ins."""
