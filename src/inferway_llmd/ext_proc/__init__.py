"""The Endpoint Picker: Envoy's external processing over gRPC, the same request path behind it."""
