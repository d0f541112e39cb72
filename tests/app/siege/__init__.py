"""A real server under load for as long as one likes, with clients of every kind and faults at random times.

`run.besiege` does it, and `verdict.broken_promises` says what should not have been; `benchmarks/soak.py` and a test use
both. Hooks that stay on a model cannot be seen from outside: the soak of a server in the own process counts them.
"""
