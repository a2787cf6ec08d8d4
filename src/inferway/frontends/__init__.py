"""The doors: HTTP for clients, and what leaves on the side; I/O."""
