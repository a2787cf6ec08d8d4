"""Records of requests that have ended, and why they went as they did."""
