"""`python -m app`: the same as `heatlens`."""

from app.cli import main

main()
