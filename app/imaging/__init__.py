"""Pictures at both ends of the service: untrusted bytes to RGB, and a map plus a picture to pixels.

NumPy, Pillow and OpenCV only; no torch, no Flask. A value walks through the modules in this order:
`decode` → (the model) → `placement` → `display` → `render` → `encode`.
"""
