"""Launch commands of inference engines: read them, say what they will do, and write them.

``parse`` reads a command or a deployment file without running or fetching anything; ``explain`` says what the engine
will make of it on a GPU; ``export_layout`` writes the flags of a layout. What engines call their options, the rules by
which they refuse, and what they leave of a GPU for the cache are data (``sim/data/launch``), each with its version and
source.
"""

from sim.launch.capacity import Capacity, capacity
from sim.launch.command import parse
from sim.launch.explain import Explanation, explain
from sim.launch.export import Exported, export_layout
from sim.launch.launch import Launch, resolve
from sim.launch.rules import Broken, broken_rules
from sim.launch.settings import Settings

__all__ = [
    "Broken",
    "Capacity",
    "Explanation",
    "Exported",
    "Launch",
    "Settings",
    "broken_rules",
    "capacity",
    "explain",
    "export_layout",
    "parse",
    "resolve",
]
