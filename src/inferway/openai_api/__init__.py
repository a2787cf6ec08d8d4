"""The wire to clients, both ways: bytes -> typed requests, errors -> bodies, SSE; pure."""
