"""gRPC over HTTP/2, as much of it as a server of messages wants: bytes in, bytes out."""
