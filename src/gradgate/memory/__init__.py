"""What a piece of work takes in memory."""

from gradgate.memory._peak import peak_memory

__all__ = ["peak_memory"]
