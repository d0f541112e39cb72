"""Looks inside a model: gradient health, activations, sensitivity of single units, and how two maps differ."""
