from server import BinaryEventTypes

__all__ = ["BinaryEventTypes"]
