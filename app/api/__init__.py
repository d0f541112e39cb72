"""Thin blueprints: parse, call the service, answer."""
