"""Durable batch jobs: pictures by the thousand, explained by worker processes, nothing lost and nothing twice."""
