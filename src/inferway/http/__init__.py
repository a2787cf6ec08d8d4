"""The HTTP data plane: connection, routes, retry loop."""
