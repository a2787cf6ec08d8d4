"""block key -> holders. The one object in which the request path and the event path meet."""
