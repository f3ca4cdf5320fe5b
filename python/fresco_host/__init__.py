"""Fresco's side of Python packs: the process in which they run, and what they may import from their host.

License: MIT OR Apache-2.0. Nothing here is taken from another host; names and call shapes are the interface that packs
are written against.
"""

PROTOCOL = 1


class Unsupported(RuntimeError):
    """Something of the host that a pack asks for and that does not exist in this process."""


class UnsupportedAttribute(Unsupported, AttributeError):
    """The same for something that packs ask about with `hasattr` first."""


class WorkerError(RuntimeError):
    """The engine refused or could not answer."""
