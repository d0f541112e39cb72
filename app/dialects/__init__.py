"""Interfaces that tools for other servers already speak: thin translations to the service's own, with its limits."""
